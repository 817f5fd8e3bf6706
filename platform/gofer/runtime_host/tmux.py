"""Agents in panes of tmux: found by a mark, looked at before every word, told things by one paste and Enter."""

from __future__ import annotations

import asyncio
import contextlib
import fcntl
import json
import os
import re
import sys
import tempfile

from gofer.crash import crash_point
from gofer.runtime_host.configuration import EDITORS, SHELLS, TmuxSettings
from gofer.runtime_host.foreground import programs_in_front
from gofer.runtime_host.interfaces import (
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
from gofer.runtime_host.panes import MARK, STARTED, Pane, TmuxServer, TypingWatch, input_line, is_shown
from gofer.sanitize import gist

SESSION = "gofer"
"""The session of tmux in which the host starts agents."""
SHOW_TIMEOUT = 3.0
"""Seconds for a pane to show what was pasted."""
SETTLED = 1.0
"""Seconds for which the screen of a program without a known prompt must stand still before it is told anything."""
BEFORE_ENTER = 0.3
"""Seconds between paste and Enter: some agents take a key that comes at once for a part of the paste."""
LOOK_PAUSE = 0.1
HISTORY = 300
"""Lines above the screen that are looked at."""

KNOWN_PROMPTS = {"claude": r"^❯$", "codex": r"^›$", "gemini": r"^ ?[>*]$", "opencode": r"^ *┃$"}
"""How the line with the cursor looks while nothing is written in it, without hints and spaces at its end."""
NO_WORDS = r"^[\W_]*$"
"""The same for every other program: a draft has words, and so has a question with choices."""
_START = """import fcntl,json,os,sys
path=sys.argv[1]
file=open(path)
fcntl.flock(file,fcntl.LOCK_SH)
given=json.load(file)
os.unlink(path)
os.chdir(given["cwd"])
term=os.environ.get("TERM","screen")
os.execvpe(given["command"][0],given["command"],{**given["environment"],"TERM":term})"""
"""Runs in a new pane: what the program is given stands in a private file, not in a command line that others see. The
host holds a lock on the file until the pane would stay visible."""


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
        known = (KNOWN_PROMPTS[name] for name in settings.program if name in KNOWN_PROMPTS)
        self._prompt = settings.prompt or next(known, "")
        self._failed: set[str] = set()

    async def open(self) -> None:
        """Find the pane; without tmux there is none yet. What failed before the host came is not counted."""
        with contextlib.suppress(NotDelivered):
            await self._find()
        self.crashes = 0

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
        panes = await self._panes()
        marked = [pane for pane in panes if pane.mark == self._name and not pane.dead]
        if marked:
            return next((pane for pane in marked if pane.started), marked[0])
        pane = await self._named(panes) if self._settings.pane else None
        if pane is None or pane.mark or pane.dead or not self._is_ours(pane):
            return None
        await self._server.run("set-option", "-p", "-t", pane.id, MARK, self._name)
        return pane

    async def _panes(self) -> list[Pane]:
        """Every pane; those in which our program has failed are counted, each once. A pane that is closed has not."""
        panes = await self._server.panes()
        failed = {pane.id for pane in panes if pane.mark == self._name and pane.failed}
        self.crashes += len(failed - self._failed)
        self._failed |= failed
        return panes

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
        """Why there is no pane."""
        panes = await self._server.panes()
        where = f"no pane {self._settings.pane} with {' or '.join(self._settings.program)} in front"
        if not panes:
            where = f"no tmux server{f' at {self._settings.socket}' if self._settings.socket else ''}"
        detail = where if self._settings.pane or not panes else ""
        return RuntimeLook(alive=False, reason="runtime.gone", detail=detail)

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
        if not await self._at_prompt(pane):
            detail = (
                "" if self._prompt else "something stands in its input; if that is its prompt, set prompt"
            )
            return RuntimeLook(
                alive=True, reason="runtime.busy", program=seen, session=pane.id, detail=detail
            )
        return RuntimeLook(alive=True, program=seen, session=pane.id, idle=bool(self._prompt))

    async def _at_prompt(self, pane: Pane) -> bool:
        """Whether nothing is written in the agent's input: a draft of the user's would be sent with our text, and Enter
        would answer a question."""
        styled = await self._server.cursor_line(pane)
        shown = (input_line(styled, column).rstrip() for column in (pane.column, sys.maxsize))
        return any(re.search(self._prompt or NO_WORDS, line) for line in shown)

    async def _fit_pane(self) -> Pane:
        """The pane, if something can be typed into it now."""
        pane = await self._find()
        if pane is None:
            raise NotDelivered("runtime.gone")
        seen = await self._inspect(pane)
        if seen.reason:
            raise NotDelivered(seen.reason, seen.detail or seen.program)
        return pane

    async def _ready_pane(self, run: OrderRun) -> Pane:
        """The pane once nobody types there, or once that has been waited for long enough."""
        order, clock = run.order, self._clock
        began, told = clock.monotonic(), False
        while True:
            run.check()
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
        if not shown and not self._prompt:
            return "pane.unconfirmed"  # Enter could answer a question that the program asks
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
            self.crashes += 1
            raise NotDelivered(failure, f"The program ended at once. {error}") from None
        await self._take_over(made)
        run.check()
        return await self._tell(await self._pane(made), words)

    async def _new_pane(self, command: list[str]) -> str:
        """Start a program in a pane of its own; it stays visible when it fails."""
        given = {
            "command": command,
            "cwd": self._settings.cwd,
            "environment": self._settings.environment(os.environ),
        }
        handle, path = tempfile.mkstemp(prefix="gofer-start-")
        start = [sys.executable, "-I", "-c", _START, path]
        with os.fdopen(handle, "w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            json.dump(given, file)
            file.flush()
            try:
                made = await self._make_window(start)
            except NotDelivered:
                os.unlink(path)
                raise
            with contextlib.suppress(NotDelivered):  # tmux is too old for it and shows no crash
                await self._server.run("set-option", "-p", "-t", made, "remain-on-exit", "failed")
        return made

    async def _take_over(self, made: str) -> None:
        """Let a pane that the host has made be the runtime from now on."""
        old = [pane for pane in await self._panes() if pane.mark == self._name]
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
            settled = self._prompt or (any(now) and loop.time() - still >= SETTLED)
            if not seen.reason and settled:
                return
            await asyncio.sleep(LOOK_PAUSE)
        raise NotDelivered(failure, "The program did not get ready in time.")
