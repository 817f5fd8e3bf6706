"""A tmux server, its panes, and what they show."""

from __future__ import annotations

import asyncio
import os
import re
import tempfile
import threading
import unicodedata
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from gofer.runtime_host.interfaces import PROBE, Clock, NotDelivered, letters

if TYPE_CHECKING:
    from libtmux import Server

T = TypeVar("T")

MARK = "@gofer_runtime"
"""The option of a pane that says which runtime it is: it stays when windows and sessions are renamed or moved."""
STARTED = "@gofer_started"
"""The option of a pane that the host itself has made."""
CALL_TIMEOUT = 10.0
"""Seconds for one call of tmux."""
_PASTED = re.compile(r"\[Pasted ", re.I)
"""What agents show instead of a long paste."""
_SAFE = "#{s/[^A-Za-z0-9._-]/_/:%s}"
"""A word in a line: programs choose their own names, and one with a line's end would be a pane that is none."""
_PANES = "|".join(
    (
        *("#{pane_id}", _SAFE % MARK, _SAFE % STARTED, "#{pane_dead}", "#{?pane_in_mode,1,0}"),
        *(
            "#{pane_pid}",
            "#{cursor_y}",
            "#{cursor_x}",
            "#{window_id}",
            "#{pane_synchronized}",
            "#{pane_dead_status}#{pane_dead_signal}",
            _SAFE % "pane_current_command",
        ),
    )
)
_CLIENTS = "#{client_activity}|#{pane_id}|#{window_id}"


@dataclass(frozen=True, slots=True)
class Pane:
    """A pane as tmux describes it."""

    id: str
    mark: str
    started: bool
    dead: bool
    in_mode: bool
    pid: int
    cursor: int
    column: int
    window: str
    synchronized: bool
    failed: bool
    """Its program has ended with an error or by a signal, and tmux knows that already. Only a pane that stays when its
    program ends shows it; before tmux 3.3 none shows a signal."""
    command: str

    @classmethod
    def of(cls, line: str) -> Pane:
        """From a line of `list-panes`."""
        words = line.split("|", 11)
        id, mark, started, dead, in_mode, pid, cursor, column, window, synchronized, status, command = words
        return cls(
            id, mark, started == "1", dead == "1", in_mode == "1", int(pid or 0), int(cursor or 0), int(column or 0),
            window, synchronized == "1", dead == "1" and status not in ("", "0"), command,
        )  # fmt: skip


class TmuxServer:
    """A tmux server, over libtmux. A call that hangs costs a thread and an error, never the host."""

    def __init__(self, socket: str = "") -> None:
        self._socket = socket

    async def run(self, *words: str) -> list[str]:
        """The lines that a command of tmux prints; raises NotDelivered when it fails."""
        return await _in_thread(lambda: self._call(words))

    def _call(self, words: tuple[str, ...]) -> list[str]:
        from libtmux.exc import LibTmuxException

        try:
            done = self._server().cmd(*words)
        except (LibTmuxException, OSError) as error:
            raise NotDelivered("tmux.missing", f"tmux cannot be run ({type(error).__name__}).") from None
        if done.returncode or done.stderr:
            raise NotDelivered("runtime.gone", " ".join(done.stderr)[:300])
        return list(done.stdout)

    def _server(self) -> Server:
        from libtmux import Server

        return Server(socket_path=self._socket) if self._socket else Server()

    async def panes(self) -> list[Pane]:
        """Every pane; none when no server runs."""
        try:
            return [Pane.of(line) for line in await self.run("list-panes", "-a", "-F", _PANES)]
        except NotDelivered as error:
            if error.reason == "runtime.gone":
                return []
            raise

    async def cursor_line(self, pane: Pane) -> str:
        """The line with the cursor, with its colours."""
        where = ["-S", str(pane.cursor), "-E", str(pane.cursor), "-t", pane.id]
        return "".join(await self.run("capture-pane", "-e", "-p", *where))

    async def screen(self, pane: str, history: int = 0) -> list[str]:
        """The lines of a pane, with so many above them."""
        more = ["-J", "-S", f"-{history}"] if history else []
        return await self.run("capture-pane", "-p", *more, "-t", pane)

    async def last_key(self, pane: Pane) -> int | None:
        """When somebody last pressed a key that went to the pane, as tmux tells it; None when nobody is there."""
        found = []
        for line in await self.run("list-clients", "-F", _CLIENTS):
            moment, at, window = line.split("|")
            if at == pane.id or (pane.synchronized and window == pane.window):
                found.append(int(moment or 0))
        return max(found, default=None)

    async def paste(self, pane: str, text: str) -> None:
        """Paste a text literally, in brackets if the program asked for them. It goes through a private file: an
        argument of tmux that ends with a semicolon would end the command."""
        name = f"gofer-{os.getpid()}-{pane.lstrip('%')}"
        with tempfile.NamedTemporaryFile("w", encoding="utf-8", prefix="gofer-paste-") as file:
            file.write(text)
            file.flush()
            await self.run("load-buffer", "-b", name, file.name)
        await self.run("paste-buffer", "-p", "-d", "-b", name, "-t", pane)


async def _in_thread(work: Callable[[], T]) -> T:
    """Run something in a thread that the process does not wait for when it ends."""
    loop = asyncio.get_running_loop()
    future: asyncio.Future[T] = loop.create_future()

    def tell(value: T | None, error: BaseException | None) -> None:
        if future.done():
            return
        if error is not None:
            future.set_exception(error)
        else:
            future.set_result(value)  # type: ignore[arg-type] # there is one where there is no error

    def run() -> None:
        value, problem = None, None
        try:
            value = work()
        except BaseException as error:  # noqa: BLE001 # it is raised where it is waited for
            problem = error
        if not loop.is_closed():
            loop.call_soon_threadsafe(tell, value, problem)

    threading.Thread(target=run, daemon=True, name="tmux").start()
    try:
        async with asyncio.timeout(CALL_TIMEOUT):
            return await future
    except TimeoutError:
        raise NotDelivered("tmux.hung", "tmux did not answer.") from None


class TypingWatch:
    """How long a pane has been quiet. The wall clock may jump, so what it says is held against what was seen."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._stamp: int | None = None
        self._looked = self._changed = float("-inf")
        self._before = float("-inf")
        """When it was last looked before the stamp changed."""

    def quiet_for(self, stamp: int | None) -> float:
        """Seconds since somebody last typed, by tmux's stamp of that moment."""
        now = self._clock.monotonic()
        if stamp != self._stamp:
            self._before, self._changed = self._looked, now
            self._stamp = stamp
        self._looked = now
        if stamp is None:
            return float("inf")
        at_least, at_most = now - self._changed, now - self._before
        return min(max(self._clock.now() - stamp, at_least, 0.0), at_most)


_STYLE = re.compile(r"\x1b\[([\d;:]*)m|\x1b\].*?(?:\x1b\\|\x07)|[\x0e\x0f]")
_FOREGROUND = re.compile(r"38;.*|3\d|9\d")
_GREY = re.compile(r"90|38;5;(?:8|23[2-9]|24\d|250)|38;2;(\d+);(\d+);(\d+)")


def input_line(styled: str, column: int) -> str:
    """A line with the cursor in this column, without the hint that an agent shows in an empty input: faint or grey, and
    behind the cursor. `styled` is the line as `capture-pane -e` prints it."""
    kept, at, faint, grey = "", 0, False, False
    for number, piece in enumerate(_STYLE.split(styled)):
        if number % 2 == 0:
            for char in piece:
                kept += char if at < column or not (faint or grey) else ""
                at += 2 if unicodedata.east_asian_width(char) in "WF" else not unicodedata.combining(char)
        elif piece is None or piece.startswith(("48;", "58;", "58:")):
            continue  # a link, or colours of the background and of lines
        elif _FOREGROUND.fullmatch(piece):
            grey = _is_grey(piece)
        else:  # tmux prints attributes together, and colours again after a reset
            faint = "2" in piece.split(";") or (faint and piece.split(";")[0] not in ("", "0"))
            grey = grey and piece.split(";")[0] not in ("", "0")
    return kept


def _is_grey(codes: str) -> bool:
    found = _GREY.fullmatch(codes)
    parts = [int(part) for part in found.groups() if part] if found else []
    return found is not None and (not parts or (max(parts) < 200 and max(parts) - min(parts) < 24))


def is_shown(before: list[str], after: list[str], words: str) -> bool:
    """Whether a pane shows a text that it did not show before, however it is wrapped and framed."""
    old, new, text = (letters("".join(lines)) for lines in (before, after, [words]))
    probes = {text[:PROBE], text[-PROBE:]} - {""}
    if any(new.count(probe) > old.count(probe) for probe in probes):
        return True
    return len(_PASTED.findall("\n".join(after))) > len(_PASTED.findall("\n".join(before)))
