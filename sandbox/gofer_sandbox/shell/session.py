"""A shell as the server sees it: one command at a time, whatever becomes of the shell meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
import signal
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from pathlib import Path

from gofer_sandbox import processes
from gofer_sandbox.journal import UNKNOWN, Journal
from gofer_sandbox.limits import Limits
from gofer_sandbox.local import Box
from gofer_sandbox.output import BackgroundLog, Capture
from gofer_sandbox.provider import Process
from gofer_sandbox.shell import frames, machine, scripts
from gofer_sandbox.shell.command import Ladder, Outcome, Run, Step
from gofer_sandbox.shell.machine import Action, State
from gofer_sandbox.shell.snapshots import Snapshots
from gofer_sandbox.shell.state import Snapshot

OnOutput = Callable[[int, bytes], None]

_under_way: set[Shell] = set()
"""Those whose command is seen through by the loop, which is not kept from them."""

_READY_WITHIN = 10.0
_SETTLE_WITHIN = 1.0
"""Seconds that letting go of a shell may wait for the state its last command left."""
_REST_AFTER = 1.0
_AGAIN_AT_MOST = 2
_LOOKED_AT = 32
"""Processes left running whose open files are looked at when a command ends."""
_TICK = 1.1 / processes.TICKS
ENDED_ALONE = "It ended while no server was there to read it: what it printed last may be missing."
UNCOUNTED = (
    "The server before may have read more of its output than was kept: that part is missing, and not counted."
)
_UNKEPT = "the shell ended before what the command before had changed was kept"
_UNKNOWN_END = "it ran, but how it ended is not known: something left running took the shell's report"
_UNBEGUN = "its shell ended before it began, and it was not run"
_FORGED = "something left running wrote reports in the shell's name, which were not believed"


class Shell:
    """Speaks with one box over its wire, whose Listener it is. What becomes of the shell is in `machine`."""

    def __init__(
        self, box: Box, limits: Limits, journal: Journal, directory: Path, snapshot: Snapshot | None
    ) -> None:
        self.box = box
        self.process: Process | None = None
        """The user's shell, while there is one."""
        self.spared: set[tuple[int, int]] = set()
        """Processes that ran before the command and are none of its business, by pid and start."""
        self.cwd = ""
        """Where the shell stood when it came up."""
        self.outcome = Outcome(0)
        """Of the command that runs or ran last."""
        self.captures: list[Capture] = []
        self.stops: deque[tuple[str, Step]] = deque()
        """Why and how the running command has to end, as far as it was not told yet."""
        self.background_log = BackgroundLog(directory / "output", limits.spool, limits.spools)
        self.closed = False
        self.notes: list[str] = []
        """What the next outcome has to say besides."""
        self._limits, self._journal, self._directory = limits, journal, directory
        self._loop = asyncio.get_running_loop()
        self._state = State.STARTING
        self._waiters: list[asyncio.Future[None]] = []
        self._unwritten = False
        """Whether the journal still says that the command runs."""
        self._given = False
        """Whether a shell that has not come up yet was given state."""
        self._resting: asyncio.TimerHandle | None = None
        self._on_output: OnOutput | None = None
        self.wire = box.wire()
        self.snapshots = Snapshots(self.wire, directory, box.home, snapshot)
        box.on_death(self.hung_up)

    # Coming up

    def begin(self) -> None:
        """Have the first shell start, with the state of an earlier one if there is any."""
        if self.snapshots.last:
            self._note_dropped()
            self.snapshots.put()
        live = self._journal.live
        live.deaths = live.shell = live.expected = 0
        self.wire.open(self)
        self.wire.go(0)

    async def until_ready(self) -> bool:
        """Wait for a shell; False when the box is lost or nothing came up."""
        return await self._until(lambda: self._state is State.IDLE, _READY_WITHIN)

    async def _until(self, holds: Callable[[], bool], within: float) -> bool:
        """Wait for the shell; False when it is lost or takes too long."""
        until = self._loop.time() + within
        while not holds():
            if self.lost or self._loop.time() >= until:
                return False
            await self.news(until)
        return not self.lost

    async def news(self, until: float) -> None:
        """Wait until something has become of the shell or its command, or that time."""
        waiter = self._loop.create_future()
        timer = self._loop.call_at(until, _wake, waiter)
        self._waiters.append(waiter)
        try:
            await waiter
        finally:
            timer.cancel()
            self._waiters.remove(waiter)

    def _tell_news(self) -> None:
        for waiter in self._waiters:
            _wake(waiter)

    @property
    def running(self) -> bool:
        """Whether a command runs."""
        return self._journal.live.running

    @property
    def lost(self) -> bool:
        """Whether nothing more will come of it here: the box is gone, or is another process's."""
        return self.closed or not self.box.alive()

    def take_over(self) -> bool:
        """Go on where another process stopped; True when a command is still to be awaited."""
        live = self._journal.live
        found, saved = Snapshot.read(self.wire.kept()), self.snapshots.last
        if found and (saved is None or found.after >= saved.after):
            self.snapshots.last = saved = found
        self.process = self.box.process(live.shell) if live.shell else None
        self.outcome = Outcome(live.number)
        if live.running:
            self._state = State.RUNNING if live.shell else State.FALLEN
            self.outcome.restarted = not live.shell
            self.outcome.exit_code = None if live.code == UNKNOWN else live.code
            self.outcome.left_at_exit = saved is not None and saved.after == live.number
        else:
            self._state = State.IDLE if live.shell else State.STARTING
        self.wire.open(self)
        self.wire.trust(live.shell, live.expected)
        self.wire.adopt(live.running)
        if live.running:
            self._open_captures()
            counted = [capture.recover() for capture in self.captures]
            self.notes += [] if all(counted) else [UNCOUNTED]
            with contextlib.suppress(FileNotFoundError):
                self.wire.resume(live.number, live.separate)
        running, kept_alone = live.running, self.wire.keeps_output
        self.wire.hear()
        if running and not kept_alone and self._state is not State.RUNNING:
            self.notes.append(ENDED_ALONE)
        if self.process is None:
            self.wire.go(-1)  # the keeper answers such a line with what it has to tell
        elif not running:
            self._ask_soon()  # the server before may have died before it asked
        return running

    # What comes in

    def frame(self, frame: frames.Frame, sender: int) -> None:
        """Take one frame from the wire."""
        live = self._journal.live
        if self.closed or (not sender and not self._plausible(frame)):
            return
        match frame:
            case frames.Done() if abs(frame.number) == live.number:
                self._on(machine.Event.DONE, frame)
            case frames.Done() if self._state is State.RUNNING and 0 <= frame.number < live.number:
                self._not_begun()
            case frames.Started():
                live.shell, live.expected = 0, frame.pid
                self._journal.write()
            case frames.Ready() if (self._state, machine.Event.READY) in machine.TRANSITIONS:
                if found := self.box.process(sender) if sender else self.box.shell(frame.pid):
                    self.process = found
                    self._on(machine.Event.READY, frame)
            case frames.Died() if frame.death > live.deaths:
                self._on(machine.Event.DIED, frame)
                if self.outcome.refused:
                    self._on(machine.Event.UNREAD, frame)
            case frames.Died() if frame.unread.startswith(scripts.RUN) and not self.outcome.again:
                self._on(machine.Event.UNREAD, frame)
            case frames.Died() if frame.death == live.deaths and not frame.unread:
                self._on(machine.Event.DIED_AGAIN, frame)
            case frames.Snapped():
                self._take_snapshot(frame)

    def _not_begun(self) -> None:
        """The shell was told to report, and never to begin; or cannot begin, and another has to. One that is at work
        has begun: the report is one that a command before has forged."""
        if self.process and self.box.busy(self.process):
            return
        if self.outcome.again < _AGAIN_AT_MOST:
            self.submit_again()
        elif self.process and not self.outcome.refused:
            self.outcome.refused = True
            self.box.signal([self.process], signal.SIGKILL)

    def _plausible(self, frame: frames.Frame) -> bool:
        """Where nobody says who speaks, a shell is looked at: it does not report in the middle of a command, nor is one
        dead that lives."""
        process = self.process
        if isinstance(frame, frames.Done) and process:
            return not self.box.busy(process)
        return not (isinstance(frame, frames.Died) and process and self.box.lives(process))

    def _on(self, event: machine.Event, frame: frames.Ready | frames.Done | frames.Died) -> None:
        self._state, actions = machine.step(self._state, event)
        for action in actions:
            match action, frame:
                case Action.END, frames.Done():
                    self._end_by_report(frame)
                case Action.NOTE_LOSS, frames.Died():
                    self._note_loss(frame)
                case Action.GIVE_STATE, frames.Died():
                    self._give_state(frame)
                case Action.GO, frames.Died():
                    if event is machine.Event.UNREAD:
                        self._journal.live.lost, self._journal.live.code = self.outcome.lost_before, UNKNOWN
                        self._journal.write()
                    self.wire.go(frame.death)
                case Action.RECOGNISE, frames.Ready():
                    self._recognise(frame)
                case Action.END_WITH_SHELL, frames.Ready():
                    self.outcome.cwd = self.cwd
                    self._end()
                case Action.SUBMIT_AGAIN, frames.Ready():
                    self._submit_to_next()

    def hung_up(self) -> None:
        """The box is lost, or its channel is closed, which comes to the same."""
        self.box.lost()
        self._tell_news()

    def forged(self, sender: int) -> None:
        """Somebody inside writes in the shell's name, again and again."""
        strangers = [one for one in self.box.background(self.process) if one.pid == sender]
        self.box.signal(strangers, signal.SIGKILL)
        self.outcome.killed += [one.command for one in strangers]
        if _FORGED not in self.outcome.notes + self.notes:
            (self.outcome.notes if self._state is State.RUNNING else self.notes).append(_FORGED)

    def output(self, stream: int, source: int, size: int) -> int:
        """Take a piece of output from the wire."""
        return self.captures[stream - 1].take(
            source, size, partial(self._show, stream) if self._on_output else None
        )

    def _show(self, stream: int, data: bytes) -> None:
        try:
            if self._on_output:
                self._on_output(stream, data)
        except Exception:  # noqa: BLE001 a listener's fault must not cost the command its result
            self._on_output = None

    def background(self, number: int, source: int, size: int) -> bool:
        """Take a piece of what a finished command's processes still print."""
        return self.background_log.take(number, source, size)

    # What becomes of the shell

    def _note_loss(self, death: frames.Died) -> None:
        """What is known to be lost is in the journal before the next shell is let go."""
        live = self._journal.live
        live.lost = live.lost or self.snapshots.lacks(live.number - live.running)
        self.outcome.lost_before = live.lost
        if live.running:
            live.lost = live.lost or not self.outcome.left_at_exit
            self.outcome.restarted = True
            self.outcome.exit_code = None if self.outcome.silenced else death.exit_code
            live.code = UNKNOWN if self.outcome.silenced else death.exit_code
        self.process, self.snapshots.owed = None, False
        self.snapshots.cancel()

    def _give_state(self, death: frames.Died) -> None:
        """For the next shell; if the last did not even come up with it, none."""
        live = self._journal.live
        if self._given:
            live.lost, self.snapshots.last = True, None
            self.notes.append("the shell did not come up with its state, and begins without")
        self._given = True
        self._note_dropped()
        live.deaths, live.shell, live.expected = death.death, 0, 0
        self._journal.write()
        self.snapshots.put()

    def _note_dropped(self) -> None:
        """Once a shell is to begin with a state that is not whole."""
        if dropped := self.snapshots.take_dropped():
            self._journal.live.lost = True
            self.notes += dropped

    def _recognise(self, ready: frames.Ready) -> None:
        """For whoever has to end it, and the server that comes after."""
        self._given, self.cwd = False, ready.cwd
        live = self._journal.live
        live.shell, live.expected = self.process.pid if self.process else 0, 0
        if not live.running:  # else the journal says at once how the command ended, too
            self._journal.write()
        if lost := self.snapshots.take_limits(ready.limits):
            self.notes.append(lost)
        self.box.settled()
        self._tell_news()

    def _end_by_report(self, done: frames.Done) -> None:
        outcome = self.outcome
        outcome.cwd = done.cwd
        outcome.exit_code = done.exit_code
        outcome.alone = self.process is not None and self.box.alone(self.process)
        if done.number < 0:
            outcome.exit_code = None
            outcome.notes.append(_UNKNOWN_END)
        self._end()

    def _submit_to_next(self) -> None:
        """The command never began, so another shell can have it, unless nobody wants it any more or it was another
        process that had it."""
        outcome = self.outcome
        outcome.exit_code, outcome.silenced = None, False
        if outcome.command is None or outcome.timed_out or outcome.stopped:
            outcome.notes.append(_UNBEGUN)
            outcome.cwd, self._state = self.cwd, State.IDLE
            self._end()
            return
        self.wire.finish()
        self.wire.settle()
        for capture in self.captures:
            capture.close()
            capture.discard()
        self.captures = []
        self._journal.write()
        self._submit()
        self._open_captures()

    def _end(self) -> None:
        """Take the rest of the output, put down that nothing runs, and wake who waits."""
        live = self._journal.live
        if self.spared:
            self._mark_output()
        self.wire.finish()
        self._on_output = None
        live.running, self._unwritten = False, True
        self._tell_news()
        if self._state is State.IDLE:
            self._ask_soon()

    def commit(self) -> None:
        """Put down that the command has ended."""
        if self._unwritten:
            self._unwritten = False
            self._journal.write()
            for capture in self.captures:
                capture.discard()

    def _mark_output(self) -> None:
        """Say so when something that ran before the command has its output open, too."""
        names = tuple(f"/{name}" for name in self.wire.current)
        for pid, _ in sorted(self.spared)[:_LOOKED_AT]:
            if any(names and path.endswith(names) for path in processes.open_files(pid)):
                command = processes.command_line(pid)
                self.outcome.notes.append(f"something left running has this output open, too: {command}")

    # Snapshots

    def _take_snapshot(self, frame: frames.Snapped) -> None:
        """The shell's own, by the wire; of a shell that runs a command, it is from before or from its end."""
        amid = self._state is State.RUNNING
        if self.snapshots.take(frame, amid, self._journal.live.number):
            self.outcome.left_at_exit |= frame.at_exit
        self._tell_news()

    def _ask_soon(self) -> None:
        self.snapshots.ask_soon()
        if self._resting is None:
            self._resting = self._loop.call_later(_REST_AFTER, self._rest)

    async def take_snapshot(self, within: float = _READY_WITHIN) -> bytes | None:
        """A snapshot as of now; the last one when the shell gives none."""
        seen = self.snapshots.count
        self.snapshots.ask()
        await self._until(lambda: self.snapshots.count > seen, within)
        return self.snapshots.last.data() if self.snapshots.last else None

    async def settle(self) -> None:
        """Have the state after the last command, if that is still to come and nothing runs; not for long."""
        if self._state is State.IDLE and self.snapshots.pending:
            await self.take_snapshot(_SETTLE_WITHIN)

    def _rest(self) -> None:
        """Let go of what only saves time, once nothing has been asked for a while."""
        self._resting = None
        if self.closed or self._state is State.RUNNING:
            return
        if time.time() - self._journal.live.started < _REST_AFTER or self.snapshots.owed:
            self._resting = self._loop.call_later(_REST_AFTER, self._rest)
            return
        self.wire.rest()
        self.box.rest()

    # Commands

    async def run(
        self,
        command: bytes,
        timeout: float,
        separate: bool,
        on_output: OnOutput | None,
        on_begun: Callable[[], None],
    ) -> Outcome:
        """Submit a command and see it through; `on_begun` is called as soon as the shell has it."""
        live = self._journal.live
        if self.snapshots.soon:  # the loop has not come round since the last command
            await asyncio.sleep(0)
        self.wire.settle()
        live.number += 1
        self.captures = []
        self.stops.clear()
        self.outcome = Outcome(live.number, command=command, before=self.outcome.exit_code or 0)
        if self.spared:
            await self._outlast_background()
        if (self._state is not State.IDLE or self.lost) and not await self.until_ready():
            return Outcome(live.number, lost=True)
        live.clock = self.box.clock()
        live.running, live.separate, live.started = True, separate, time.time()
        live.deadline, live.code = live.started + timeout, UNKNOWN
        self._journal.write()
        self._state, _ = machine.step(self._state, machine.Event.SUBMITTED)
        self._submit()
        self._open_captures()
        self._on_output = on_output
        if not self.snapshots.owed and not _under_way:
            self.wire.hear_at_once()
        if not live.running:
            self._tell(self.outcome)
            return self.outcome
        on_begun()
        return await self._see_through(timeout)

    async def _outlast_background(self) -> None:
        """Wait until what runs in the background is older than the clock: who takes over tells by that alone what
        the command started, and its ticks are long."""
        if any(start >= self.box.clock() for _, start in self.spared):
            await asyncio.sleep(_TICK)

    def _submit(self) -> None:
        """Hand the command that the journal says runs to the shell, behind the snapshot it may owe."""
        live, outcome = self._journal.live, self.outcome
        assert outcome.command is not None
        outcome.again, outcome.refused, outcome.left_at_exit = 0, False, False
        self.snapshots.cancel()
        self.wire.submit(live.number, outcome.command, live.separate, outcome.before)

    def submit_again(self) -> None:
        """The command's lines may have been taken away: give them once more, which runs nothing twice. Not while those
        are there that it was given: a shell that ends without having read them has not begun, which is known then."""
        if self.outcome.again < _AGAIN_AT_MOST and not self.wire.unread():
            self.outcome.again += 1
            self.wire.submit_again()

    def end_takers(self) -> list[Process]:
        """End what has the shell's channel and an earlier command left running, or such a process has started since;
        whose parents have ended may be one, too."""
        channel, keeper = self.box.channel(), self.box.reference.pid
        families = {keeper}
        takers = []
        for one in self.box.background(self.process):  # parents come before their children
            if (one.pid, one.start) in self.spared or one.parent in families:
                families.add(one.pid)
                takers += [one] if channel in processes.open_files(one.pid) else []
        self.box.signal(takers, signal.SIGKILL)
        self.outcome.again = 0
        return takers

    async def resume(self) -> Outcome:
        """See through a command another process submitted; its deadline still holds."""
        return await self._see_through(max(0.001, self._journal.live.deadline - time.time()))

    async def _see_through(self, timeout: float) -> Outcome:
        live, outcome = self._journal.live, self.outcome
        ladder = Ladder(self.box, lambda: self.process, live.clock, self.spared)
        _under_way.add(self)
        try:
            await Run(self, ladder, timeout).until_end()
            self._tell(outcome)
        finally:
            _under_way.discard(self)
            if not self.closed:
                if ladder.step and self._state is State.IDLE:
                    self.wire.go(live.deaths)  # does nothing: an interrupt that comes late ends this line
                if live.running:
                    self._end()
                    self.commit()
                    self._state = State.STARTING
        return outcome

    def _tell(self, outcome: Outcome) -> None:
        """What was lost, by this command or by a shell that ended between two. The journal forgets it with the next
        command: until then the caller may not have got to keep this result."""
        live = self._journal.live
        notes, self.notes = self.notes, []
        outcome.notes += notes
        if live.lost:
            live.lost, outcome.state_lost = False, True
            if not outcome.restarted and not notes:
                outcome.notes.append(_UNKEPT)

    def stop(self, reason: str, step: Step = Step.ASK) -> None:
        """Have the running command ended."""
        self.stops.append((reason, step))
        self._tell_news()

    def _open_captures(self) -> None:
        """For the output of the command that the journal says runs, unless they are there."""
        if self.captures:
            return
        live = self._journal.live
        kinds = ("out", "err") if live.separate else ("out",)
        path, limits = f"{self._directory}/output/{live.number}", self._limits
        cap, spool = limits.output // len(kinds), limits.spool // len(kinds)
        self.captures = [Capture(f"{path}.{kind}", cap, spool) for kind in kinds]

    def moved(self, directory: Path) -> None:
        """What is kept on disk is at another place now."""
        self._directory = self.snapshots.directory = directory
        self.background_log = BackgroundLog(directory / "output", self._limits.spool, self._limits.spools)

    def close(self) -> None:
        """Let go of the wire and the files; who waits for a command learns that it is out of our hands."""
        self.closed = True
        self._tell_news()
        self.snapshots.close()
        if self._resting:
            self._resting.cancel()
        for capture in self.captures:
            capture.release()
        self.wire.close()


def _wake(waiter: asyncio.Future[None]) -> None:
    if not waiter.done():
        waiter.set_result(None)
