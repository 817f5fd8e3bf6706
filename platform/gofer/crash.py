"""Named points at which a test can make the process die as if by `kill -9`; nothing in production.

`GOFER_CRASH_AT=name` or `name:3` ends the process the first (third) time that point is reached.
"""

from __future__ import annotations

import os

EXIT_CODE = 137

POINTS = frozenset(
    {
        "intake.before_record",
        "intake.recorded",
        "intake.committed",
        "job.claimed",
        "run.started",
        "run.admitted",
        "run.answered",
        "journal.appending",
        "journal.appended",
        "memory.keeping",
        "memory.kept",
        "memory.tidying",
        "memory.tidied",
        "shell.ran",
        "job.concluding",
        "job.concluded",
        "outbox.begun",
        "outbox.placed_outside",
        "outbox.placed",
        "outbox.completed_outside",
        "outbox.sent",
        "schedule.said",
        "proposal.approved",
        "proposal.written",
        "proposal.noted",
        "run.delegated",
        "task.begun",
        "task.worked",
        "task.finishing",
        "task.finished",
        "goal.asked",
        "goal.advanced",
        "goal.reporting",
        "heartbeat.recorded",
        "heartbeat.decided",
        "heartbeat.nudged",
        "heartbeat.delegated",
        "nudge.pressed",
        "nudge.muted",
        "nudge.said",
        "trigger.looking",
        "trigger.looked",
        "trigger.called",
        "post.saying",
        "release.staged",
        "host.begun",
        "host.pasted",
        "host.done",
        "key.added",
        "key.rewrapped",
        "key.retired",
    }
)


class _Countdown:
    """How often the chosen point may still be passed."""

    def __init__(self, wanted: str) -> None:
        self.name, _, times = wanted.partition(":")
        self.left = int(times or 1)

    def reached(self, name: str) -> None:
        if name == self.name:
            self.left -= 1
            if self.left <= 0:
                os._exit(EXIT_CODE)


_countdown = _Countdown(os.environ["GOFER_CRASH_AT"]) if os.environ.get("GOFER_CRASH_AT") else None


def crash_point(name: str) -> None:
    """Die here when a test asked for it."""
    if _countdown is not None:
        assert name in POINTS, name
        _countdown.reached(name)
