"""Whether a run gets anywhere: repeats, cycles, polling, errors, staleness and monologue.

The definitions and numbers were measured on 500 recorded runs that all ended by themselves; none of them would
have been stopped. Calls made in one turn are one step. The scope is one job. A changed workspace is progress: what is
done again after a change is neither repeated nor a cycle.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import takewhile
from typing import Any

from gofer.agent.state import State, Step
from gofer.tool import ToolResult

WINDOW = 20
REPEATS_IN_A_ROW, REPEATS_NUDGE, REPEATS_STOP = 3, 4, 5
CHANGING_NUDGE, CHANGING_STOP = 8, 12
"""Times in a row that one call may change files, such as one that appends to a log."""
POLL_NUDGE, POLL_STOP = 8, 12
POLLING_TOOL_NUDGE, POLLING_TOOL_STOP = 60, 120
CYCLES = 3
ERRORS_NUDGE, ERRORS_STOP = 5, 8
MALFORMED_STOP = 3
STALE_NUDGE, STALE_STOP = 4, 6
QUIET_STOP = 3

_NOISE = [
    (r"\x1b\[[0-9;?]*[ -/]*[@-~]|\x1b\][^\x07]*\x07", "", r"\x1b"),
    (r"\b[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}\b", "<uuid>", r"-[0-9a-fA-F]{4}-"),
    (r"\b0x[0-9a-fA-F]{4,}\b", "<address>", r"0x"),
    (
        r"\b\d{4}-\d\d-\d\d[T ]\d\d:\d\d(?::\d\d(?:[.,]\d+)?)?(?:Z|[+-]\d\d:?\d\d)?",
        "<time>",
        r"-\d\d[T ]\d\d:",
    ),
    (r"\b\d\d:\d\d:\d\d(?:[.,]\d+)?\b", "<time>", r":\d\d:\d\d"),
    (r"\b\d+(?:\.\d+)?\s?(?:ms|s|sec|seconds|µs|us|ns)\b", "<duration>", r"\d\s?[mnsuµ]"),
    (r"(?i)\bpid[ =:]*\d+", "<pid>", r"(?i)pid"),
    (r"\[\d+\] \d+", "<job>", r"\[\d"),
    (r"/tmp/[^\s'\":,;)]+|/var/tmp/[^\s'\":,;)]+", "<temporary>", r"/tmp/"),  # noqa: S108 - a pattern
]
"""What differs between two runs of the same command that did the same thing, what stands for it, and a sign that is in
each: most results have none, and to look for it takes a fraction of the time."""
_PATTERNS = [(re.compile(noise), stands_for, re.compile(sign)) for noise, stands_for, sign in _NOISE]


@dataclass(frozen=True, slots=True)
class LoopFinding:
    """A sign that the run gets nowhere."""

    code: str
    stop: bool
    text: str
    """For the model when it is a nudge, for the user when it is a stop."""


def call_sig(name: str, arguments: dict[str, Any]) -> str:
    """The same for the same tool with the same arguments, in whatever order they are written."""
    return _hash(name, json.dumps(arguments, sort_keys=True, ensure_ascii=False))


def result_sig(result: ToolResult) -> str:
    """The same for results that differ only in times, addresses and the like."""
    text = result.content
    for pattern, stands_for, sign in _PATTERNS:
        if sign.search(text):
            text = pattern.sub(stands_for, text)
    pictures = [hashlib.sha256(image.data).hexdigest() for image in result.images]
    return _hash(str(result.is_error), str(result.exit_code), str(result.timed_out), text, *pictures)


def _hash(*parts: str) -> str:
    return hashlib.sha256("\0".join(parts).encode("utf-8", "surrogatepass")).hexdigest()[:16]


def detect_loop(state: State) -> LoopFinding | None:
    """The gravest finding, if there is one: a stop comes before a nudge, and each nudge once."""
    findings = [found for rule in _RULES if (found := rule(state)) is not None]
    stops = [found for found in findings if found.stop]
    nudges = [found for found in findings if not found.stop and f"nudge:{found.code}" not in state.given]
    return (stops + nudges + [None])[0]


def _repeat(state: State) -> LoopFinding | None:
    steps = [step for step in state.steps if step.pairs and not step.polling]
    if not steps:
        return None
    last = _pairs(steps[-1])
    in_a_row = sum(1 for _ in takewhile(lambda step: _pairs(step) == last, reversed(steps)))
    if steps[-1].progress:
        most, row, stop = 0, CHANGING_NUDGE, in_a_row >= CHANGING_STOP
    else:
        since = _since_change(steps[-WINDOW:], lambda step: _pairs(step) == last)
        most, row = sum(_pairs(step) == last for step in since), REPEATS_IN_A_ROW
        in_a_row, stop = min(in_a_row, most), most >= REPEATS_STOP
    if stop:
        return LoopFinding(
            "loop.repeat", True, "I was doing the same thing over and over with the same result."
        )
    if most >= REPEATS_NUDGE or in_a_row >= row:
        return LoopFinding(
            "loop.repeat", False, "This call gave the same result as before. Do something different."
        )
    return None


def _pairs(step: Step) -> tuple[tuple[str, str], ...]:
    return tuple(sorted(step.pairs))


def _since_change(steps: Sequence[Step], same: Callable[[Step], bool]) -> Sequence[Step]:
    """The steps since something last changed, changes by the call itself aside. What is done again after a change is no
    repetition."""
    changes = [index for index, step in enumerate(steps) if step.progress and not same(step)]
    return steps[changes[-1] + 1 :] if changes else steps


def _poll(state: State) -> LoopFinding | None:
    if not state.steps or not state.steps[-1].pairs:
        return None
    polling = state.steps[-1].polling
    last = _calls(state.steps[-1])
    window = state.steps if polling else state.steps[-WINDOW:]
    since = window if polling else _since_change(window, lambda step: _calls(step) == last)
    count = sum(_calls(step) == last for step in since)
    nudge, stop = (POLLING_TOOL_NUDGE, POLLING_TOOL_STOP) if polling else (POLL_NUDGE, POLL_STOP)
    if count >= stop:
        return LoopFinding("loop.poll", True, "I kept asking the same thing and nothing came of it.")
    if count >= nudge:
        return LoopFinding(
            "loop.poll", False, f"You made this call {count} times. Wait in one command, or go on."
        )
    return None


def _calls(step: Step) -> tuple[str, ...]:
    return tuple(sorted(call for call, _ in step.pairs))


def _cycle(state: State) -> LoopFinding | None:
    steps = [step for step in state.steps if step.pairs and not step.polling]
    for period in (2, 3):
        last = steps[-period * CYCLES :]
        tail = [_pairs(step) for step in last]
        if len(tail) < period * CYCLES or len(set(tail[:period])) == 1 or any(step.progress for step in last):
            continue
        if all(tail[index] == tail[index % period] for index in range(len(tail))):
            return LoopFinding("loop.cycle", True, "I was going round in circles through the same steps.")
    return None


def _errors(state: State) -> LoopFinding | None:
    count = 0
    for step in reversed(state.steps):
        if not step.pairs or step.errors < len(step.pairs):
            break
        count += 1
    if count >= ERRORS_STOP:
        return LoopFinding("loop.errors", True, f"The last {count} tool calls all failed.")
    if count >= ERRORS_NUDGE:
        return LoopFinding(
            "loop.errors", False, f"The last {count} calls failed. Read the errors; try another way."
        )
    return None


def _malformed(state: State) -> LoopFinding | None:
    last = state.steps[-MALFORMED_STOP:]
    if len(last) == MALFORMED_STOP and all(step.malformed for step in last):
        return LoopFinding("loop.malformed", True, "The model's tool calls were malformed again and again.")
    return None


def _stale(state: State) -> LoopFinding | None:
    seen: set[tuple[str, str]] = set()
    stale = 0
    for step in state.steps:
        fresh = step.progress or step.polling or any(pair not in seen for pair in step.pairs)
        stale = 0 if fresh or not step.pairs else stale + 1
        seen.update(step.pairs)
    if stale >= STALE_STOP:
        return LoopFinding("loop.stale", True, "I made no progress any more.")
    if stale >= STALE_NUDGE:
        return LoopFinding(
            "loop.stale", False, "Nothing new came of the last steps. Change your approach, or answer."
        )
    return None


def _monologue(state: State) -> LoopFinding | None:
    if state.quiet_turns >= QUIET_STOP:
        return LoopFinding("loop.monologue", True, "The model talked without doing or answering anything.")
    return None


_RULES: tuple[Callable[[State], LoopFinding | None], ...] = (
    _repeat,
    _poll,
    _cycle,
    _errors,
    _malformed,
    _stale,
    _monologue,
)
