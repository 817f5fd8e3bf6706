"""A server to be killed: starts a sandbox, prints its record, runs commands, and says what it has seen.

Called with a base directory, a session directory, where to die, and commands; it is killed in the last.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
from pathlib import Path
from types import FrameType

from gofer_sandbox import Bubblewrap, Sandbox
from gofer_sandbox.journal import Journal


def say(text: str) -> None:
    """To whoever waits for us."""
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


def die_before_recording(running: bool) -> None:
    """Die at the very instant between having read something and putting it down: the status, or, while the command
    is still taken for running, that there is another shell."""
    write = Journal.write
    submitted = False

    def write_or_die(journal: Journal) -> None:
        nonlocal submitted
        if submitted and journal.live.running is running:
            os.kill(os.getpid(), signal.SIGKILL)
        submitted = submitted or journal.live.running
        write(journal)

    Journal.write = write_or_die  # type: ignore[assignment, method-assign]


def die_having_read() -> None:
    """Die at the very instant after a piece of output has left its FIFO."""

    def look(frame: FrameType, event: str, called: object) -> None:
        took = event == "c_return" and called in (os.read, os.splice)
        if took and _within(frame, "_on_output") and not _within(frame, "_on_status"):
            os.kill(os.getpid(), signal.SIGKILL)

    sys.setprofile(look)


def _within(frame: FrameType | None, name: str) -> bool:
    while frame and frame.f_code.co_name != name:
        frame = frame.f_back
    return frame is not None


async def main(base: str, directory: str, where: str, *commands: str) -> None:
    """Run all but the last command, then the last, telling of each piece of output."""
    sandbox = Sandbox(Bubblewrap(base=Path(base)), directory=directory)
    await sandbox.start()
    for command in commands[:-1]:
        await sandbox.run(command)
    say(sandbox.record.to_json())
    if where.startswith("before recording"):
        die_before_recording(where.endswith("shell"))
    if where == "having read":
        die_having_read()
    timeout = 0.5 if where == "with a deadline" else 60
    await sandbox.run(
        commands[-1],
        timeout=timeout,
        separate=where == "with errors apart",
        on_output=lambda _, data: say(f"got {len(data)}"),
    )
    say("done")
    await asyncio.sleep(60)


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
