"""Agents in panes of tmux: found by a mark, looked at before every word, told things by one paste and Enter."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import re
import sys
import tempfile
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from gofer.crash import crash_point
from gofer.runtime_host.configuration import EDITORS, SHELLS, TmuxSettings
from gofer.runtime_host.foreground import programs_in_front
from gofer.runtime_host.interfaces import (
    PROBE,
    Adapter,
    Clock,
    HostReport,
    NotDelivered,
    Order,
    OrderRun,
    RuntimeLook,
    letters,
    words_of,
)
from gofer.sanitize import gist

if TYPE_CHECKING:
    from libtmux import Server

T = TypeVar("T")

MARK = "@gofer_runtime"
"""The option of a pane that says which runtime it is: it stays when windows and sessions are renamed or moved."""
STARTED = "@gofer_started"
"""The option of a pane that the host itself has made."""
SESSION = "gofer"
"""The session of tmux in which the host starts agents."""
CALL_TIMEOUT = 10.0
"""Seconds for one call of tmux."""
SHOW_TIMEOUT = 3.0
"""Seconds for a pane to show what was pasted."""
SETTLED = 1.0
"""Seconds for which the screen of a program without a known prompt must stand still before it is told anything."""
BEFORE_ENTER = 0.3
"""Seconds between paste and Enter: some agents take a key that comes at once for a part of the paste."""
LOOK_PAUSE = 0.1
HISTORY = 300
"""Lines above the screen that are looked at."""

_PASTED = re.compile(r"\[Pasted (?:text|Content|\d+)", re.I)
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
            "#{pane_dead_status}",
            _SAFE % "pane_current_command",
        ),
    )
)
_CLIENTS = "#{client_activity}|#{pane_id}|#{window_id}"
_START = """import json,os,sys
path=sys.argv[1]
given=json.load(open(path))
os.unlink(path)
os.chdir(given["cwd"])
term=os.environ.get("TERM","screen")
os.execvpe(given["command"][0],given["command"],{**given["environment"],"TERM":term})"""
"""Runs in a new pane: what the program is given stands in a private file, not in a command line that others see."""


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
    """Its program has ended, and not by its own will. Only a pane that stays when its program ends shows that."""
    command: str

    @classmethod
    def of(cls, line: str) -> Pane:
        """From a line of `list-panes`."""
        words = line.split("|", 11)
        id, mark, started, dead, in_mode, pid, cursor, column, window, synchronized, status, command = words
        return cls(
            id, mark, started == "1", dead == "1", in_mode == "1", int(pid or 0), int(cursor or 0), int(column or 0),
            window, synchronized == "1", dead == "1" and status != "0", command,
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


class TmuxAdapter(Adapter):
    """One agent in a pane."""

    kind = "tmux"

    def __init__(self, name: str, settings: TmuxSettings, clock: Clock | None = None) -> None:
        self._name = name
        self._settings = settings
        self._server = TmuxServer(settings.socket)
        self._clock = clock or Clock()
        self._typing = TypingWatch(self._clock)
        self.can_resume = bool(settings.resume)
        self.can_spawn = bool(settings.spawn)

    async def open(self) -> None:
        """Find the pane; without tmux there is none yet."""
        try:
            await self._find()
        except NotDelivered:
            return

    async def close(self) -> None:
        """The panes stay."""

    async def look(self) -> RuntimeLook:
        """See whether the pane is there, and whether it could be told something now."""
        try:
            pane = await self._find()
            if pane is None:
                return await self._nobody()
            self._typing.quiet_for(await self._server.last_key(pane))
            return await self._inspect(pane)
        except NotDelivered as error:
            return RuntimeLook(alive=False, reason=error.reason)

    async def carry_out(self, run: OrderRun) -> HostReport:
        """Tell the pane something, or start a program in a new pane and tell that."""
        action = run.order.action
        if action == "look":
            seen = await self.look()
            return HostReport(status="delivered" if seen.alive else "failed", reason=seen.reason)
        if action in ("resume", "spawn"):
            return await self._start(run)
        if action == "stop":
            raise NotDelivered("runtime.not_managed")
        words = self._words(run.order)
        pane = await self._ready_pane(run)
        await run.begin()
        return await self._tell(pane, words)

    async def recover(self, tail: str) -> HostReport | None:
        """Press the Enter that a host which died has not pressed: only where its text ends right before the cursor."""
        pane = await self._find()
        if pane is None or not tail or (await self._inspect(pane)).reason not in ("", "runtime.busy"):
            return None
        lines = await self._server.screen(pane.id)
        before = letters(
            "".join([*lines[: pane.cursor], *(line[: pane.column] for line in lines[pane.cursor :][:1])])
        )
        if not before.endswith(tail):
            return None
        await self._server.run("send-keys", "-t", pane.id, "Enter")
        return HostReport(status="delivered", session=pane.id)

    # Finding.

    async def _find(self) -> Pane | None:
        """The pane with our mark. One that the file names is marked when it is seen with the agent in it."""
        panes = await self._server.panes()
        marked = [pane for pane in panes if pane.mark == self._name and not pane.dead]
        if marked:
            return next((pane for pane in marked if pane.started), marked[0])
        pane = await self._named(panes) if self._settings.pane else None
        if pane is None or pane.mark or pane.dead or not self._is_ours(pane):
            return None
        await self._server.run("set-option", "-p", "-t", pane.id, MARK, self._name)
        return pane

    async def _named(self, panes: list[Pane]) -> Pane | None:
        target = self._settings.pane
        try:
            # display-message answers for the current pane when there is no such one; capture-pane fails.
            await self._server.run("capture-pane", "-p", "-E", "0", "-t", target)
            found = await self._server.run("display-message", "-p", "-t", target, "#{pane_id}")
        except NotDelivered:
            return None
        return next((pane for pane in panes if found == [pane.id]), None)

    async def _nobody(self) -> RuntimeLook:
        """Why there is no pane. A program that the host started may have failed; a pane that is closed has not."""
        panes = await self._server.panes()
        crashed = any(pane.mark == self._name and pane.failed for pane in panes)
        where = f"no pane {self._settings.pane} with {' or '.join(self._settings.program)} in front"
        if not panes:
            where = f"no tmux server{f' at {self._settings.socket}' if self._settings.socket else ''}"
        detail = where if self._settings.pane or not panes else ""
        return RuntimeLook(alive=False, reason="runtime.gone", detail=detail, crashed=crashed)

    def _is_ours(self, pane: Pane) -> bool:
        return not programs_in_front(pane.pid, pane.command).isdisjoint(self._settings.program)

    # Looking.

    async def _inspect(self, pane: Pane) -> RuntimeLook:
        names = programs_in_front(pane.pid, pane.command)
        seen = next((name for name in self._settings.program if name in names), "") or gist(pane.command, 100)
        if pane.in_mode:
            return RuntimeLook(alive=True, reason="pane.copy_mode", program=seen, session=pane.id)
        if names.isdisjoint(self._settings.program):
            shell = not names.isdisjoint(SHELLS)
            return RuntimeLook(
                alive=False, reason="pane.shell" if shell else "pane.other_program", program=seen
            )
        if editor := next(iter(names & EDITORS), ""):
            return RuntimeLook(alive=True, reason="pane.other_program", program=editor, session=pane.id)
        if self._settings.prompt and not await self._at_prompt(pane):
            return RuntimeLook(alive=True, reason="runtime.busy", program=seen, session=pane.id)
        return RuntimeLook(alive=True, program=seen, session=pane.id, idle=bool(self._settings.prompt))

    async def _at_prompt(self, pane: Pane) -> bool:
        lines = await self._server.screen(pane.id)
        line = lines[pane.cursor] if pane.cursor < len(lines) else ""
        return re.search(self._settings.prompt, line.rstrip()) is not None

    async def _fit_pane(self) -> Pane:
        """The pane, if something can be typed into it now."""
        pane = await self._find()
        if pane is None:
            raise NotDelivered("runtime.gone")
        seen = await self._inspect(pane)
        if seen.reason:
            raise NotDelivered(seen.reason, seen.program)
        return pane

    async def _ready_pane(self, run: OrderRun) -> Pane:
        """The pane once nobody types there, or once that has been waited for long enough."""
        order, clock = run.order, self._clock
        began, told = clock.monotonic(), False
        while True:
            pane = await self._fit_pane()
            silence = self._typing.quiet_for(await self._server.last_key(pane))
            if order.force or run.forced.is_set() or silence >= order.quiet.quiet:
                return pane
            left = order.quiet.at_most - (clock.monotonic() - began)
            if left <= 0:
                if order.quiet.then == "fail":
                    raise NotDelivered("deferred.typing")
                return pane
            if not told:
                told = True
                await run.report(HostReport(status="deferred", reason="deferred.typing"))
            await clock.sleep(min(order.quiet.look_every, left))

    # Telling.

    def _words(self, order: Order) -> str:
        words = words_of(order)
        return " ".join(words.split()) if self._settings.paste == "line" else words

    async def _tell(self, pane: Pane, words: str) -> HostReport:
        """Paste, press Enter if the agent is still in front, and see whether the pane shows it."""
        before = await self._server.screen(pane.id, HISTORY)
        pasted = False
        try:
            await self._server.paste(pane.id, words)
            pasted = True
            why = await self._entered(pane, before, words)
        except NotDelivered as error:
            if not pasted and error.reason != "tmux.hung":
                raise
            why = error.reason
        return HostReport(status="unknown" if why else "delivered", reason=why, session=pane.id)

    async def _entered(self, pane: Pane, before: list[str], words: str) -> str:
        """Press Enter after a paste; returns why it is not certain that the agent has got the text."""
        shown = await self._shows(pane.id, before, words)
        await asyncio.sleep(BEFORE_ENTER)
        crash_point("host.pasted")
        if why := await self._changed(pane):
            return why
        await self._server.run("send-keys", "-t", pane.id, "Enter")
        if shown or await self._shows(pane.id, before, words):
            return ""
        return "pane.unconfirmed"

    async def _changed(self, pane: Pane) -> str:
        """Why Enter must not be pressed now: it would go to copy mode, or to another program, as a command."""
        now = next((each for each in await self._server.panes() if each.id == pane.id), None)
        if now is None or now.dead:
            return "runtime.gone"
        if now.in_mode:
            return "pane.copy_mode"
        return "" if self._is_ours(now) else "pane.other_program"

    async def _shows(self, pane: str, before: list[str], words: str) -> bool:
        for _ in range(int(SHOW_TIMEOUT / LOOK_PAUSE)):
            try:
                after = await self._server.screen(pane, HISTORY)
            except NotDelivered:
                return False
            if is_shown(before, after, words):
                return True
            await asyncio.sleep(LOOK_PAUSE)
        return False

    # Starting.

    async def _start(self, run: OrderRun) -> HostReport:
        order = run.order
        command = self._settings.resume if order.action == "resume" else self._settings.spawn
        if not command:
            raise NotDelivered("runtime.not_managed")
        words = self._words(order)
        await run.begin()
        failure = f"{order.action}.failed"
        made = await self._new_pane(command)
        try:
            await self._wait_until_ready(made, failure)
        except NotDelivered as error:
            with contextlib.suppress(NotDelivered):
                await self._server.run("kill-pane", "-t", made)
            if error.reason != "runtime.gone":
                raise
            raise NotDelivered(failure, f"The program ended at once. {error}") from None
        await self._take_over(made)
        return await self._tell(await self._pane(made), words)

    async def _new_pane(self, command: list[str]) -> str:
        """Start a program in a pane of its own; it stays visible when it fails."""
        given = {
            "command": command,
            "cwd": self._settings.cwd,
            "environment": self._settings.environment(os.environ),
        }
        handle, path = tempfile.mkstemp(prefix="gofer-start-")
        with os.fdopen(handle, "w") as file:
            json.dump(given, file)
        start = [sys.executable, "-I", "-c", _START, path]
        try:
            made = await self._make_window(start)
        except NotDelivered:
            os.unlink(path)
            raise
        with contextlib.suppress(NotDelivered):  # it has ended, or tmux is too old for it and shows no crash
            await self._server.run("set-option", "-p", "-t", made, "remain-on-exit", "failed")
        return made

    async def _take_over(self, made: str) -> None:
        """Let a pane that the host has made be the runtime from now on."""
        old = [pane for pane in await self._server.panes() if pane.mark == self._name]
        for name, value in ((MARK, self._name), (STARTED, "1")):
            await self._server.run("set-option", "-p", "-t", made, name, value)
        for pane in old:
            # What the host made it also clears away; a pane of the user's only loses the mark.
            undo = ["kill-pane"] if pane.started else ["set-option", "-p", "-u"]
            await self._server.run(*undo, "-t", pane.id, *([] if pane.started else [MARK]))

    async def _make_window(self, start: list[str]) -> str:
        told = ["-d", "-P", "-F", "#{pane_id}", "-n", self._name]
        try:
            await self._server.run("has-session", "-t", f"={SESSION}")
        except NotDelivered:
            words = ["new-session", *told, "-s", SESSION, "-x", "200", "-y", "50"]
        else:
            words = ["new-window", *told, "-t", f"={SESSION}:"]
        return (await self._server.run(*words, *start))[0]

    async def _pane(self, id: str) -> Pane:
        found = next((pane for pane in await self._server.panes() if pane.id == id), None)
        if found is None or found.dead:
            shown = await self._server.screen(id) if found is not None else []
            said = [line for line in shown if line.strip() and not line.startswith("Pane is dead")]
            raise NotDelivered("runtime.gone", gist(said[-1]) if said else "It said nothing.")
        return found

    async def _wait_until_ready(self, id: str, failure: str) -> None:
        """Until the program is at its prompt, or without a known one its screen has stood still for a moment."""
        loop = asyncio.get_running_loop()
        until, still, screen = loop.time() + self._settings.ready_within, loop.time(), [""]
        while loop.time() < until:
            pane = await self._pane(id)
            now = await self._server.screen(id)
            if now != screen:
                screen, still = now, loop.time()
            seen = await self._inspect(pane)
            settled = self._settings.prompt or (any(now) and loop.time() - still >= SETTLED)
            if not seen.reason and settled:
                return
            await asyncio.sleep(LOOK_PAUSE)
        raise NotDelivered(failure, "The program did not get ready in time.")


def is_shown(before: list[str], after: list[str], words: str) -> bool:
    """Whether a pane shows a text that it did not show before, however it is wrapped and framed."""
    old, new, text = (letters("".join(lines)) for lines in (before, after, [words]))
    probes = {text[:PROBE], text[-PROBE:]} - {""}
    if any(new.count(probe) > old.count(probe) for probe in probes):
        return True
    return len(_PASTED.findall("\n".join(after))) > len(_PASTED.findall("\n".join(before)))
