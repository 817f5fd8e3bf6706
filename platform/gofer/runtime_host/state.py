"""What the host must not forget: orders it has begun, sessions, processes, and who it is. Files, synced to disk."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import secrets
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gofer.errors import ConfigError
from gofer.runtime_host.interfaces import HostReport

MAX_ORDERS = 2000
"""Orders that are remembered; the platform hands none out again after so many others."""


class StateFolder:
    """A folder of the host's own, which one process uses at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = path.stat()
        if status.st_uid != os.geteuid() or status.st_mode & 0o077:
            raise ConfigError(f"{path} is open to others, or not yours. Run: chmod 700 {path}")

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the folder; raises ConfigError while another host does."""
        with open(self.path / "lock", "a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                raise ConfigError(
                    f"A host with this name runs already (it holds {self.path}). Stop it, or give this one "
                    'another name: host = "…" in its file.'
                ) from None
            yield

    @property
    def instance(self) -> str:
        """Which installation this is: two hosts of one name on two machines differ in it, a restarted one does not."""
        kept = self.read("instance")
        if not isinstance(kept, str):
            kept = secrets.token_hex(16)
            self.write("instance", kept)
        return kept

    def read(self, name: str) -> Any:
        """What was kept under a name; None when nothing readable was."""
        try:
            return json.loads((self.path / f"{name}.json").read_bytes())
        except (OSError, ValueError):
            return None

    def write(self, name: str, value: Any) -> None:
        """Keep something, whole or not at all."""
        fresh = self.path / f"{name}.json.new"
        with open(fresh, "w") as file:
            json.dump(value, file)
            file.flush()
            os.fsync(file.fileno())
        os.replace(fresh, self.path / f"{name}.json")
        handle = os.open(self.path, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


class RuntimeState:
    """What is kept of one runtime: its session, and the process that the host started."""

    def __init__(self, folder: StateFolder, name: str) -> None:
        self._folder = folder
        self._file = f"runtime-{name}"
        kept = folder.read(self._file)
        self._kept: dict[str, Any] = kept if isinstance(kept, dict) else {}

    @property
    def session(self) -> str:
        """The last session; empty when there was none."""
        return str(self._kept.get("session", ""))

    @property
    def can_load(self) -> bool:
        """Whether the agent said that it can load sessions."""
        return self._kept.get("can_load") is True

    @property
    def process(self) -> tuple[int, int] | None:
        """Number and start time of the process that the host started last, unless it has ended it."""
        kept = self._kept.get("process")
        return (int(kept[0]), int(kept[1])) if kept else None

    def keep_session(self, session: str, *, can_load: bool) -> None:
        """Remember a session."""
        self._keep(session=session, can_load=can_load)

    def keep_process(self, pid: int, start: int) -> None:
        """Remember a process that was started."""
        self._keep(process=[pid, start])

    def forget_process(self) -> None:
        """It has ended."""
        self._keep(process=None)

    def _keep(self, **values: Any) -> None:
        self._kept.update(values)
        self._folder.write(self._file, self._kept)


class OrderJournal:
    """Orders that were begun and what became of them. One line is on the disk before an agent is reached, so that
    after a crash nothing is done twice: an order without an end is reported as unknown."""

    def __init__(self, folder: StateFolder) -> None:
        self._path = folder.path / "orders.jsonl"
        self._entries: dict[str, _Entry] = {}
        self._lines = 0
        self._read()
        self._compact()

    @property
    def interrupted(self) -> list[tuple[str, str, str]]:
        """Orders that were begun by a host that died before their end, with their runtimes and how their texts end."""
        return [(order, each.runtime, each.tail) for order, each in self._entries.items() if each.end is None]

    @property
    def untold(self) -> dict[str, HostReport]:
        """Orders whose end was not yet reported to the platform."""
        return {order: entry.end for order, entry in self._entries.items() if entry.end and not entry.told}

    def knows(self, order: str) -> bool:
        """Whether an order was begun, ever."""
        return order in self._entries

    def end_of(self, order: str) -> HostReport | None:
        """What became of an order, as far as that can be said once more: an answer is kept only until it was told."""
        end = self._entries[order].end
        return None if end is None or (end.status == "answered" and not end.text) else end

    def begin(self, order: str, runtime: str = "", tail: str = "") -> None:
        """Write down that an order is begun; on the disk when this returns."""
        self._entries[order] = _Entry(runtime=runtime, tail=tail)
        self._append(order)

    def finish(self, order: str, report: HostReport) -> None:
        """Write down what became of an order."""
        self._entries[order] = _Entry(report)
        self._append(order)

    def told(self, order: str) -> None:
        """Record that the platform has the report. The agent's answer is no longer needed here."""
        entry = self._entries[order]
        if entry.end is not None and not entry.told:
            self._entries[order] = _Entry(entry.end.model_copy(update={"text": ""}), told=True)
            self._append(order)

    def _read(self) -> None:
        with contextlib.suppress(FileNotFoundError):
            for line in self._path.read_bytes().splitlines():
                # A last line that was cut off by a crash never counted.
                with contextlib.suppress(ValueError, KeyError, TypeError):
                    kept = json.loads(line)
                    end = HostReport(**kept["end"]) if kept["end"] else None
                    about = {name: str(kept.get(name, "")) for name in ("runtime", "tail")}
                    self._entries[str(kept["order"])] = _Entry(end, bool(kept["told"]), **about)

    def _append(self, order: str) -> None:
        self._write(self._path, os.O_APPEND, self._line(order))
        self._lines += 1
        if self._lines > 4 * MAX_ORDERS:
            self._compact()

    def _compact(self) -> None:
        """Keep the newest orders only, one line for each."""
        self._entries = dict(list(self._entries.items())[-MAX_ORDERS:])
        self._lines = len(self._entries)
        fresh = self._path.with_suffix(".new")
        self._write(fresh, os.O_TRUNC, b"".join(map(self._line, self._entries)))
        os.replace(fresh, self._path)

    def _line(self, order: str) -> bytes:
        entry = self._entries[order]
        kept = {"order": order, "end": entry.end.model_dump() if entry.end else None, "told": entry.told}
        if entry.end is None:
            kept |= {"runtime": entry.runtime, "tail": entry.tail}
        return json.dumps(kept).encode() + b"\n"

    def _write(self, path: Path, how: int, data: bytes) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC | how, 0o600)
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())


@dataclass(frozen=True, slots=True)
class _Entry:
    end: HostReport | None = None
    told: bool = False
    runtime: str = ""
    tail: str = ""
    """The end of what was to be told, to recognise it by."""
