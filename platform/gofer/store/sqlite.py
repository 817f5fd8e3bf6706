"""SQLite: one thread owns the only writing connection and commits whatever is queued together.

One writer removes "database is locked" inside the process, keeps clear of the WAL-reset bug of SQLite before
3.51.3 (two connections that write or checkpoint at once), and makes `synchronous=FULL` affordable: many
operations share one fsync.
"""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import os
import queue
import sqlite3
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, Concatenate

import structlog
from sqlalchemy import URL, Connection, create_engine, event
from sqlalchemy.engine import Engine
from sqlalchemy.exc import DBAPIError, OperationalError
from sqlalchemy.pool import NullPool

from gofer.errors import ConfigError, StoreBusy, StoreError, StoreUnavailable
from gofer.store import json_text
from gofer.store.database import Dialect, P, T
from gofer.store.row_macs import Signing

log = structlog.get_logger()

MAX_PER_COMMIT = 256
READERS = 3


class _Operation:
    """A verb on its way through the writer thread, and what became of it."""

    __slots__ = ("error", "future", "loop", "result", "verb")

    def __init__(self, verb: Callable[[Connection], Any]) -> None:
        self.verb = verb
        self.loop = asyncio.get_running_loop()
        self.future: asyncio.Future[Any] = self.loop.create_future()
        self.result: Any = None
        self.error: BaseException | None = None

    def settle(self) -> None:
        """Tell the caller the result. It may have stopped waiting; the verb was run all the same."""
        if self.future.done():
            return
        if self.error is not None:
            self.future.set_exception(_translated(self.error))
        else:
            self.future.set_result(self.result)


class SqliteDatabase:
    """The default store: a file, a lock, a writer thread and a few readers."""

    dialect: Dialect = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path
        self.signing = Signing()
        self._gathered: list[_Operation] = []
        """Verbs of one round of the event loop; they go to the thread together."""
        self._queue: queue.SimpleQueue[list[_Operation] | None] = queue.SimpleQueue()
        self._lock: int | None = None
        self._thread: threading.Thread | None = None
        self._readers: ThreadPoolExecutor | None = None
        # One for all of them: an engine keeps the statements it has compiled.
        self._reading = _engine(path, self.signing, writes=False)
        self._local = threading.local()
        self._opened: list[Connection] = []

    async def start(self) -> None:
        self.path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._lock = _take_lock(self.path)
        _close_to_others(self.path)
        ready: Future[None] = Future()
        self._thread = threading.Thread(target=self._run, args=(ready,), name="gofer-writer", daemon=True)
        self._thread.start()
        try:
            await asyncio.wrap_future(ready)
        except BaseException:
            self._release()
            raise
        self._readers = ThreadPoolExecutor(READERS, thread_name_prefix="gofer-reader")

    async def close(self) -> None:
        if self._thread is not None:
            self._send()
            self._queue.put(None)
            # Closed from here on: what came behind the end of the queue would wait for ever.
            thread, self._thread = self._thread, None
            await asyncio.to_thread(thread.join)
        if self._readers is not None:
            self._readers.shutdown(wait=True)
            self._readers = None
            for connection in self._opened:
                connection.close()
            self._opened.clear()
        self._release()

    async def write(
        self, verb: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self._thread is None:
            raise StoreUnavailable("The store is closed.")
        operation = _Operation(lambda connection: verb(connection, *args, **kwargs))
        self._gathered.append(operation)
        if len(self._gathered) == 1:
            operation.loop.call_soon(self._send)
        result: T = await operation.future
        return result

    def _send(self) -> None:
        if self._gathered:
            self._queue.put(self._gathered)
            self._gathered = []

    async def write_one(
        self, verb: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        return await self.write(verb, *args, **kwargs)

    async def read(
        self, verb: Callable[Concatenate[Connection, P], T], /, *args: P.args, **kwargs: P.kwargs
    ) -> T:
        if self._readers is None:
            raise StoreUnavailable("The store is closed.")
        return await asyncio.get_running_loop().run_in_executor(
            self._readers, self._read, lambda connection: verb(connection, *args, **kwargs)
        )

    def _read(self, verb: Callable[[Connection], T]) -> T:
        connection: Connection | None = getattr(self._local, "connection", None)
        if connection is None:
            connection = self._local.connection = _connect(self._reading)
            self._opened.append(connection)
        try:
            _driver(connection).execute("BEGIN")
            return verb(connection)
        except (DBAPIError, sqlite3.Error) as error:
            reason = getattr(error, "orig", error)
            raise StoreUnavailable(f"SQLite could not read {self.path}: {reason}") from error
        finally:
            _rollback(connection)

    def _release(self) -> None:
        if self._lock is not None:
            os.close(self._lock)
            self._lock = None

    # The writer thread.

    def _run(self, ready: Future[None]) -> None:
        try:
            connection = _connect(_engine(self.path, self.signing, writes=True))
        except BaseException as error:  # noqa: BLE001 - somebody waits for it, who would else wait for ever
            ready.set_exception(_not_opened(self.path, error))
            return
        ready.set_result(None)
        with contextlib.closing(connection):
            while (batch := self._next_batch()) is not None:
                _commit_together(connection, batch)
                del batch  # what it brought may be large, and the next may be long in coming

    def _next_batch(self) -> list[_Operation] | None:
        """Whatever is queued now, waiting for the first; None when it is time to end."""
        batch = self._queue.get()
        while batch is not None and len(batch) < MAX_PER_COMMIT:
            try:
                more = self._queue.get_nowait()
            except queue.Empty:
                break
            if more is None:
                self._queue.put(None)
                break
            batch += more
        return batch


def _not_opened(path: Path, error: BaseException) -> BaseException:
    if not isinstance(error, DBAPIError | sqlite3.Error):
        return error
    what = f"SQLite cannot open {path}: {getattr(error, 'orig', error)}."
    if isinstance(error, OperationalError | sqlite3.OperationalError):
        return StoreError(f"{what} Check that the folder is writable.")
    return ConfigError(
        f"{what} Put a backup in its place: gofer restore FILE. The old file is kept beside it."
    )


def _commit_together(connection: Connection, batch: list[_Operation], *, apart: bool = False) -> None:
    """Run a batch in one transaction. Most batches have no failure in them, so none is looked for at first: a savepoint
    each costs more than a short statement. After a failure all of them run again, with savepoints, so that it does not
    spoil the others."""
    driver = _driver(connection)
    try:
        driver.execute("BEGIN IMMEDIATE")
        for operation in batch:
            if apart:
                _run_apart(connection, driver, operation)
            else:
                operation.result = operation.verb(connection)
        driver.execute("COMMIT")
    except BaseException as error:  # noqa: BLE001 - handed to the caller
        _rollback(connection)
        if len(batch) == 1:
            batch[0].error = error
        elif not apart:
            _commit_together(connection, batch, apart=True)
            return
        else:
            # A full disk or an interrupt has rolled back the whole batch, savepoints or not: rerun them singly.
            for operation in batch:
                operation.error = None
                _commit_together(connection, [operation])
            return
    loop = batch[0].loop
    # The caller's loop may be gone at shutdown; what was written stays written.
    with contextlib.suppress(RuntimeError):
        loop.call_soon_threadsafe(_settle, batch)


def _run_apart(connection: Connection, driver: sqlite3.Connection, operation: _Operation) -> None:
    driver.execute("SAVEPOINT one")
    try:
        operation.result = operation.verb(connection)
    except BaseException as error:
        if not driver.in_transaction:
            raise
        driver.execute("ROLLBACK TO one")
        operation.error = error
    driver.execute("RELEASE one")


def _settle(batch: list[_Operation]) -> None:
    for operation in batch:
        operation.settle()


def _translated(error: BaseException) -> BaseException:
    """A disk or lock problem in our own words; a verb's own error as it is."""
    if isinstance(error, OperationalError | sqlite3.OperationalError):
        reason = getattr(error, "orig", error)
        log.warning("store.write_failed", error=str(reason))
        return StoreUnavailable(f"SQLite could not write: {reason}. Nothing was changed.")
    return error


def _driver(connection: Connection) -> sqlite3.Connection:
    """Python's own connection, for what would cost more through SQLAlchemy than it does itself."""
    driver: Any = connection.connection.dbapi_connection
    assert isinstance(driver, sqlite3.Connection)
    return driver


def _rollback(connection: Connection) -> None:
    driver = _driver(connection)
    if driver.in_transaction:
        driver.execute("ROLLBACK")


def _connect(engine: Engine) -> Connection:
    connection = engine.connect()
    # SQLAlchemy, too, must believe that it is inside a transaction: a migration would begin its own.
    connection.begin()
    return connection


def _engine(path: Path, signing: Signing, *, writes: bool) -> Engine:
    # AUTOCOMMIT leaves BEGIN and COMMIT to us; SQLAlchemy only compiles and binds.
    engine = create_engine(
        # Not written out as text, in which a `?` in the name of a folder would begin something else.
        URL.create("sqlite", database=str(path)),
        poolclass=NullPool,
        isolation_level="AUTOCOMMIT",
        json_serializer=json_text.write,
        json_deserializer=json_text.read,
        execution_options={"signing": signing},
        connect_args={"check_same_thread": False, "timeout": 30},
    )

    @event.listens_for(engine, "connect")
    def _prepare(dbapi: sqlite3.Connection, _: object) -> None:
        if writes:
            dbapi.execute("PRAGMA journal_mode=WAL")
            dbapi.execute("PRAGMA synchronous=FULL")
            dbapi.execute("PRAGMA foreign_keys=ON")
            # A purged key must not linger in the pages it was on.
            dbapi.execute("PRAGMA secure_delete=FAST")
        else:
            dbapi.execute("PRAGMA query_only=ON")
        dbapi.execute("PRAGMA temp_store=MEMORY")

    return engine


def _close_to_others(path: Path) -> None:
    """SQLite makes files that all may read, and its log like the file it belongs to."""
    with contextlib.suppress(OSError):  # told better when it is opened
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        for suffix in ("", "-wal", "-shm"):
            part = path.with_name(path.name + suffix)
            if part.exists():
                part.chmod(0o600)


@contextlib.contextmanager
def held(path: Path) -> Iterator[None]:
    """Hold a database file without opening it; raises StoreBusy when a process has it."""
    descriptor = _take_lock(path)
    try:
        yield
    finally:
        os.close(descriptor)


def _take_lock(path: Path) -> int:
    """Hold the file for this process, or say who does and what to do."""
    lock_path = path.with_name(path.name + ".lock")
    try:
        descriptor = os.open(lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(
            f"{lock_path} cannot be opened: {error.strerror}. If another user made it, as after a command with "
            f"sudo, run: chown -R $USER {path.parent}"
        ) from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        holder = os.pread(descriptor, 32, 0).decode(errors="replace").strip() or "unknown"
        os.close(descriptor)
        raise StoreBusy(
            f"{path} is in use by another Gofer process (pid {holder}). Stop that one first, or set "
            "GOFER_DATABASE_URL to a Postgres database to run several processes.",
            holder,
        ) from None
    os.truncate(descriptor, 0)
    os.pwrite(descriptor, f"{os.getpid()}\n".encode(), 0)
    return descriptor
