"""A shell as the server sees it: one command at a time, whatever becomes of the shell meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from gofer_sandbox import processes
from gofer_sandbox.journal import Journal
from gofer_sandbox.limits import Limits
from gofer_sandbox.output import BackgroundLog, Capture, prune
from gofer_sandbox.provider import Box, Process
from gofer_sandbox.shell import frames
from gofer_sandbox.shell.command import TICK, Event, Lost, Outcome, Run, Stop, Tick
from gofer_sandbox.shell.ladder import Ladder, Step
from gofer_sandbox.shell.state import Snapshot, fitting

OnOutput = Callable[[int, bytes], None]

_READY_WITHIN = 10.0
_SLOW_SNAPSHOT = 0.02
_SMALL_SNAPSHOT = 32 * 1024
"""Below this it is the machine that is slow."""
_SNAPSHOT_AFTER = 1.0
_SAVE_EVERY = 0.2
_INPUT_PATIENCE = 1.0
_INPUT_LOOK = 0.005
_TICK = 1.1 / processes.TICKS
_UNKEPT = "the shell ended before what the command before had changed was kept"


class Shell:
    """Speaks with one box over its wire, whose Listener it is."""

    def __init__(
        self, box: Box, home: str, limits: Limits, journal: Journal, directory: Path, snapshot: bytes | None
    ) -> None:
        self.box, self.snapshot = box, snapshot
        self.captures: list[Capture] = []
        self._process: Process | None = None
        self._unseen = 0
        """What a shell calls itself that said it is there and was not looked at since."""
        self.spared: set[tuple[int, int]] = set()
        """Processes that ran before the command and are none of its business, by pid and start."""
        self.on_tick: Callable[[], None] = lambda: None
        """Called now and then while a command runs."""
        self.exits = 0
        """How many shells left a snapshot as they ended."""
        self._snapshots = 0
        self._left = 0
        """When the last of them did."""
        self.owes_snapshot = False
        """Whether the shell is still busy with the snapshot after its last command: it has not begun the next."""
        self.behind_snapshot = False
        """Whether the command was given in one line with that snapshot: without its news it has not begun."""
        self.unread = False
        """Whether the last shell died without having read the command it was given."""
        self.cwd = ""
        """Where the shell stood when it came up."""
        self.unkept = ""
        """What the shell that is coming up, or came up last, could not be given of its predecessor's state."""
        self.ended_alone = False
        """Whether the command we took over had ended before, when nobody read or kept what it printed."""
        self.uncounted = False
        """Whether the server before may have read more of its output than it kept."""
        self.background_log = BackgroundLog(directory / "output", limits.spool, limits.spools)
        self._home, self._limits, self._journal, self._directory = home, limits, journal, directory
        self._outputs = f"{directory}/output/"
        self._loop = asyncio.get_running_loop()
        self._events: deque[Event] = deque()
        self._waiter: asyncio.Future[None] | None = None
        self.closed = False
        self._ready = False
        self._asked_at = 0.0
        self._snapshot_slow = False
        self._snapshot_failed = False
        self._given: int | None = None
        """After which death a shell was given state, until it is ready."""
        self._unsaved: int | None = None
        """The command that has ended and whose changes no snapshot has yet."""
        self._forgotten: set[int] = set()
        """Commands whose changes were lost with their shell, until somebody was told."""
        self._deaths: int | None = None
        """How many shells have died; None while that is not known."""
        self._ahead: int | None = None
        """The death whose news needs no answer, for the keeper has it already."""
        self._ended = False
        """Whether the shell that the last command was given to has ended."""
        self._prepared: bytes | None = None
        """The snapshot that the files for the next shell were made of."""
        self._later: asyncio.Handle | None = None
        """Asks for the snapshot after the last command, which has not left one yet."""
        self._submitting: asyncio.TimerHandle | None = None
        self._saving: asyncio.TimerHandle | None = None
        self._saved_at = -_SAVE_EVERY
        self._on_output: OnOutput | None = None
        self._before = 0
        """How the last command ended."""
        self.wire = box.wire()
        self.wire.open(self)
        box.on_death(lambda: self.push(Lost()))

    @property
    def process(self) -> Process | None:
        """The user's shell, while there is one."""
        self._recognise()
        return self._process

    # Coming up

    def begin(self) -> None:
        """Have the first shell start, with the state of an earlier one if there is any."""
        if self.snapshot:
            self._put_state()
        self._deaths = self._journal.live.deaths = 0
        self.wire.go(0)

    async def until_ready(self) -> bool:
        """Wait for a shell; False when the box is lost or nothing came up."""
        timer = self._loop.call_later(_READY_WITHIN, self.push, TICK)
        try:
            while not self._ready:
                if isinstance(await self.next(), (Lost, Tick)):
                    return False
        finally:
            timer.cancel()
        self._events.clear()
        return self.box.alive() and not self.closed

    def take_over(self) -> bool:
        """Go on where another process stopped; True when a command is still to be awaited."""
        live = self._journal.live
        self._process = self.box.child(live.shell) or self.box.shell()
        self._ready = self._process is not None
        death = frames.parse(self.wire.death())
        known = death.death if isinstance(death, frames.Died) else live.deaths
        self._deaths = known if known >= 0 else None
        snapshots = (fitting(data, self.snapshot) for data in self.wire.left_snapshots())
        self._copy_out(next(filter(None, snapshots), None))
        self._left = self.wire.left_at_exit()
        self.wire.adopt(live.running)
        if not live.running:
            self._unsaved = live.number
            if self._ready:
                self._ask_soon()  # the server before may have died before it asked
            return False
        self._open_captures()
        for capture in self.captures:
            self.uncounted |= not capture.recover()
        with contextlib.suppress(FileNotFoundError):
            self.wire.resume(live.number, live.separate)
        self.wire.hear()  # before anything else is concluded
        left = frames.parse(self.wire.status())
        if isinstance(left, frames.Done) and left.number == live.number:
            self.ended_alone = not self.wire.keeps_output
            self.push(left)
        elif isinstance(death, frames.Died) and 0 <= live.deaths < death.death:
            self._died_alone(death)
        return True

    def _died_alone(self, death: frames.Died) -> None:
        """The command's shell ended, and the news of that, and of the one after it, may have gone to the server
        before. Unless somebody inside put it there: no shell that lives is older than the command then."""
        if self._process and self._process.start < self._journal.live.clock:
            return
        self.ended_alone = not self.wire.keeps_output
        self.exits += self._left != self._journal.live.left
        self.push(death)
        if self.process:
            state = Snapshot.parse(self.snapshot or b"")
            cwd = state.cwd.decode("utf-8", "replace") if state else self._home
            self.push(frames.Ready(self._journal.live.shell, cwd))

    # What comes in

    def frame(self, frame: bytes) -> None:
        """Take one frame from the wire. Whoever is inside can say that a shell ended or came up, so it is looked at."""
        event = frames.parse(frame)
        if isinstance(event, frames.Snapped):
            self._take_snapshot(event.slot)
        elif isinstance(event, frames.Died):
            if self.process and self.box.lives(self.process):
                return
            self._on_death(event)
        elif isinstance(event, frames.Ready):
            self._unseen = event.pid
            if self._deaths and not self.process:
                return
            self._on_ready(event)
        elif isinstance(event, frames.Done) and event.number == self._journal.live.number:
            self._unsaved = event.number
        if event is not None:
            self.push(event)

    def output(self, stream: int, source: int, size: int) -> int:
        """Take a piece of output from the wire."""
        data = self.captures[stream - 1].take(source, size)
        if data and self._on_output:
            try:
                self._on_output(stream, data)
            except Exception:  # noqa: BLE001 a listener's fault must not cost the command its result
                self._on_output = None
        return len(data)

    def background(self, number: int, source: int, size: int) -> bool:
        """Take a piece of what a finished command's processes still print."""
        return self.background_log.take(number, source, size)

    def _on_ready(self, event: frames.Ready) -> None:
        self._ready = True
        self._snapshot_failed, self._given = False, None
        self.cwd = event.cwd
        self._loop.call_soon(
            self._recognise
        )  # behind whoever waits for the shell, and need not wait for this

    def _recognise(self) -> None:
        """Find the shell that has come up, for whoever has to end it, and the server that comes after."""
        inner, self._unseen = self._unseen, 0
        found = self.box.shell(inner) if inner and not self.closed else None
        if found:
            self._process = found
            self._journal.live.shell = inner
            self._journal.write()

    def _on_death(self, event: frames.Died) -> None:
        """Give the keeper the state for the next shell; if the last did not even come up, none."""
        if event.unread:
            self.unread = self.unread or b"</dev/null 1<>" in event.unread
        elif event.death != self._given:
            if self._given is not None:
                self.snapshot, self._snapshot_failed = None, True
            if self._snapshot_failed or self._prepared is None or self._prepared is not self.snapshot:
                self._put_state()
            self._given = event.death
        self._ended, self._ready, self.owes_snapshot = True, False, False
        if self._unsaved is not None:
            self._forgotten.add(self._unsaved)
            self._unsaved = None
        self._cancel_asking()
        self._process, self._unseen, self._deaths = None, 0, event.death
        if event.unread or event.death != self._ahead:
            self.wire.go(event.death)
        self._ahead = None

    def _put_state(self) -> None:
        snapshot = Snapshot.parse(self.snapshot) if self.snapshot else None
        self.unkept = _unkept(snapshot, self._snapshot_failed)
        if snapshot:
            self.wire.put_state(snapshot.state(self._home), snapshot.option_lines())
        else:
            self.wire.put_state(b"", b"")
        self._prepared = self.snapshot

    def _take_snapshot(self, slot: str) -> None:
        """Copy it out: it is in a tmpfs that ends with PID 1."""
        self._snapshots += 1
        self.owes_snapshot = False
        data = self.wire.take_snapshot(slot) or b""
        if slot == frames.AT_EXIT:  # which nobody asked for
            self.exits += 1
            self._left = self.wire.left_at_exit()
        else:
            took = time.monotonic() - self._asked_at
            self._snapshot_slow = len(data) > _SMALL_SNAPSHOT and took > _SLOW_SNAPSHOT
        whole = fitting(data, self.snapshot)
        self._snapshot_failed = whole is None
        reported, self._unsaved = self._unsaved == self._journal.live.number, None
        self._copy_out(whole)
        if slot == frames.AT_EXIT and whole:
            self._go_ahead(self._journal.live.running and not reported and not self._ended)

    def _go_ahead(self, in_command: bool) -> None:
        """The state for the next shell is known before this one has ended: the keeper need not wait for us then.
        Should the shell live on after all, it reads a line that does nothing. Only while a command runs, or the
        next shell might find one that was meant for this."""
        self._put_state()
        if in_command and self._deaths is not None:
            self._ahead = self._deaths + 1
            self.wire.go(self._ahead)

    def _copy_out(self, data: bytes | None) -> None:
        if data and data != self.snapshot:
            self.snapshot = data
            due = self._saved_at + _SAVE_EVERY
            if self._loop.time() >= due:
                self._save()
            elif self._saving is None:
                self._saving = self._loop.call_at(due, self._save)

    def _save(self) -> None:
        """Keep it on disk, for a reboot; a full disk must not take the session down."""
        if self._saving:
            self._saving.cancel()
        self._saving, self._saved_at = None, self._loop.time()
        temporary = self._directory / "snapshot.new"
        with contextlib.suppress(OSError):
            temporary.write_bytes(self.snapshot or b"")
            temporary.replace(self._directory / "snapshot")

    def push(self, event: Event) -> None:
        """Have whoever waits act on an event."""
        self._events.append(event)
        if self._waiter and not self._waiter.done():
            self._waiter.set_result(None)

    async def next(self) -> Event:
        """The next event."""
        while not self._events:
            self._waiter = self._loop.create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        return self._events.popleft()

    # Commands

    async def run(
        self, command: bytes, timeout: float, separate: bool, on_output: OnOutput | None
    ) -> Outcome:
        """Submit a command and see it through."""
        live = self._journal.live
        live.number += 1
        self.captures = []
        if self.spared:
            await self._outlast_background()
        self._events.clear()  # now: what became of the shell meanwhile is no news of this command
        if self.closed or not self.box.alive() or not (self._ready or await self.until_ready()):
            return Outcome(live.number, lost=True)
        live.clock = self.box.clock()
        live.running, live.separate, live.started = True, separate, time.time()
        live.deadline = live.started + timeout
        live.deaths, live.left = -1 if self._deaths is None else self._deaths, self._left
        self._journal.write()
        self._recognise()  # while it is still called so
        self.submit(command)
        # From here on the shell is at work, and what we do costs the caller nothing.
        self._open_captures()
        self._on_output = on_output
        return await self._see_through(timeout, command)

    async def _outlast_background(self) -> None:
        """Wait until what runs in the background is older than the clock: who takes over tells by that alone what
        the command started, and its ticks are long."""
        if any(start >= self.box.clock() for _, start in self.spared):
            await asyncio.sleep(_TICK)

    def submit(self, command: bytes, owed: str = "", seen: tuple[int, float] = (-1, 0.0)) -> None:
        """Hand the command that the journal says runs to the shell, behind the snapshot it owes. `seen` is how much
        was in its input at the last look, and since when."""
        self.unread = False
        live = self._journal.live
        if self._cancel_asking() and not self._snapshot_slow:
            owed = _slot(live.number - 1)
        try:
            self.wire.submit(live.number, command, live.separate, owed, self._before)
        except BlockingIOError:
            self._submit_later(command, owed, seen)
            return
        self._ended, self.behind_snapshot = False, bool(owed)
        if owed:
            self._note_asked()

    def _submit_later(self, command: bytes, owed: str, seen: tuple[int, float]) -> None:
        """Somebody inside filled the shell's input: it reads that first, unless it has stopped to read."""
        self._open_captures()
        self.wire.finish()
        now, backlog = self._loop.time(), self.wire.backlog()
        if backlog != seen[0]:
            seen = backlog, now
        if now < seen[1] + _INPUT_PATIENCE:
            self._submitting = self._loop.call_later(_INPUT_LOOK, self.submit, command, owed, seen)
        else:
            self.stop("the shell's input was full of something else", Step.REPLACE)

    async def resume(self) -> Outcome:
        """See through a command another process submitted; its deadline still holds."""
        return await self._see_through(max(0.001, self._journal.live.deadline - time.time()), None)

    async def _see_through(self, timeout: float, command: bytes | None) -> Outcome:
        live = self._journal.live
        outcome = Outcome(live.number)
        ladder = Ladder(self.box, lambda: self.process, live.clock, self.spared)
        try:
            await Run(self, ladder, outcome, timeout, command).until_end()
            self._tell_forgotten(outcome)
        except asyncio.CancelledError:
            self._forgotten |= {outcome.number} if outcome.state_lost else set()  # for whoever asks next
            raise
        finally:
            if ladder.step and self._ready and not self.closed:
                self.wire.go(
                    self._deaths or 0
                )  # does nothing: an interrupt that comes late ends this, not the next
            self._end(outcome)
        return outcome

    def _tell_forgotten(self, outcome: Outcome) -> None:
        """A shell may end between two commands, too, before it has left a snapshot of what the first changed."""
        told = {number for number in self._forgotten if number < outcome.number}
        if told:
            self._forgotten -= told
            outcome.state_lost = True
            outcome.notes.append(_UNKEPT)

    def _end(self, outcome: Outcome) -> None:
        """Take the rest of the output, and put down that nothing runs; unless we have let go of it, and it
        may well run on."""
        if self._submitting:
            self._submitting.cancel()
        if self.closed:
            return
        with contextlib.suppress(OSError):
            self.wire.finish()
        self._on_output = None
        self._before = outcome.exit_code or 0
        self._journal.live.running = False
        self._journal.write()
        if self._ready:
            self._ask_soon()

    def stop(self, reason: str, step: Step = Step.ASK) -> None:
        """Have the running command ended."""
        self.push(Stop(reason, step))

    def _open_captures(self) -> None:
        """For the output of the command that the journal says runs, unless they are there."""
        if self.captures:
            return
        live = self._journal.live
        names = [f"{live.number}.out", f"{live.number}.err"][: 2 if live.separate else 1]
        cap, spool = self._limits.output // len(names), self._limits.spool // len(names)
        self.captures = [Capture(self._outputs + name, cap, spool) for name in names]

    def _ask_soon(self) -> None:
        """Have the shell leave a snapshot once the caller has its result: bash would go on to that with the result
        still on its way, on the very processor the server is woken on. The next command waits for it."""
        slot = _slot(self._journal.live.number)
        if self._snapshot_slow:
            self._later = self._loop.call_later(_SNAPSHOT_AFTER, self._ask_snapshot, slot)
        else:
            self._later = self._loop.call_soon(self._ask_snapshot, slot)

    def _cancel_asking(self) -> bool:
        """Whether a snapshot was still to be asked for."""
        later, self._later = self._later, None
        if later:
            later.cancel()
        return later is not None

    def _ask_snapshot(self, slot: str) -> None:
        self._later = None
        with contextlib.suppress(OSError):
            self.wire.ask_snapshot(slot)
            self._note_asked()

    def _note_asked(self) -> None:
        self._asked_at = time.monotonic()
        self.owes_snapshot = True

    async def take_snapshot(self) -> bytes | None:
        """A snapshot as of now; the last one when the shell gives none."""
        seen = self._snapshots
        self._events.clear()
        self._cancel_asking()
        self._ask_snapshot(frames.IDLE)
        timer = self._loop.call_later(_READY_WITHIN, self.push, TICK)
        try:
            while self._snapshots == seen:
                if isinstance(await self.next(), (Lost, Tick)):
                    break
        finally:
            timer.cancel()
        return self.snapshot

    def prune_outputs(self) -> None:
        """Hold what is kept on disk to its bound."""
        prune(self._directory / "output", self._limits.spools)

    def close(self) -> None:
        """Let go of the wire and the files; who waits for a command learns that it is out of our hands."""
        self._recognise()
        self.closed = True
        self._events.clear()  # nothing more can be done about them
        self.push(Lost())
        if self._cancel_asking():  # for whoever takes over
            self._ask_snapshot(_slot(self._journal.live.number))
        if self._submitting:
            self._submitting.cancel()
        if self._saving:
            self._saving.cancel()
            self._save()
        for capture in self.captures:
            capture.release()
        self.wire.close()


def _slot(number: int) -> str:
    """Where the snapshot after a command goes; the shell may be at the next while the server reads it."""
    return str(number % 2)


def _unkept(snapshot: Snapshot | None, failed: bool) -> str:
    """What to tell of state that a new shell does not get."""
    if failed:
        return "the shell's state could not be kept; what is older than its last command is back, if anything"
    if snapshot and snapshot.dropped:
        return f"the shell's state was too large to keep; not brought back: {', '.join(snapshot.dropped)}"
    return ""
