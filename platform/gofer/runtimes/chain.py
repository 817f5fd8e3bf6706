"""The chain of a Trigger: which hop comes next. One pure function over plain values.

live -> resume (at most twice) -> spawn -> fallback agent -> dead letter. A runtime that is away, drained or crashes
again and again is not tried. Where a person sits at the terminal nothing is started over them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Action = Literal["live", "resume", "spawn", "fallback", "dead_letter"]

MAX_RESUMES, MAX_SPAWNS, MAX_BUSY = 2, 1, 3
BUSY_PAUSE = 15.0
"""Seconds before a busy runtime is tried again; twice as long each time."""
OCCUPIED = ("deferred.typing", "pane.copy_mode")
"""Reasons that say that a person is there: no session is resumed or spawned beside them."""
DECLINED = ("runtime.refused", "runtime.no_words")
"""Reasons that say that the agent took its turn and will not answer: the same question is not asked again."""
BUSY = "runtime.busy"
HERE, STALE, AWAY = "here", "stale", "away"


@dataclass(frozen=True, slots=True)
class Tried:
    """A hop that failed."""

    action: str
    reason: str


@dataclass(frozen=True, slots=True)
class RuntimeFacts:
    """What is known of a runtime at one moment."""

    host: str = HERE
    """Whether its host is here, has missed three heartbeats (stale), or is away."""
    alive: bool = True
    """Whether its host says that the session is there."""
    has_session: bool = True
    can_resume: bool = False
    can_spawn: bool = False
    silent_for: float = 0
    """Seconds since the session last did something."""
    crashes: int = 0
    """How often it died by itself lately."""
    draining: bool = False


@dataclass(frozen=True, slots=True)
class ChainRules:
    """What bounds the chain."""

    fallback: bool
    """Whether there is an agent to fall back to."""
    resume_within: float = 12 * 3600.0
    """Seconds of silence after which a session is not resumed."""
    max_crashes: int = 3
    """Crashes after which the runtime is not tried."""


@dataclass(frozen=True, slots=True)
class Step:
    """The next hop."""

    action: Action
    why: str
    """The classification: why it is this one."""
    after: float = 0
    """Seconds to wait before it."""


def next_hop(tried: Sequence[Tried], runtime: RuntimeFacts | None, rules: ChainRules) -> Step:
    """The hop that comes after those that failed, with the reason for it."""
    if any(hop.action == "fallback" for hop in tried):
        return Step("dead_letter", "fallback.failed")
    why_not = _unreachable(runtime, rules)
    if runtime is None or why_not:
        return _without_runtime(why_not, rules)
    last = tried[-1].reason if tried else ""
    if last in OCCUPIED or last in DECLINED:
        return _without_runtime(last, rules)
    if last == BUSY:
        busy = sum(hop.reason == BUSY for hop in tried)
        if busy >= MAX_BUSY or not runtime.alive:
            return _without_runtime(BUSY, rules)
        return Step("live", BUSY, BUSY_PAUSE * 2.0 ** (busy - 1))
    return _through_runtime(tried, runtime, rules)


def _unreachable(runtime: RuntimeFacts | None, rules: ChainRules) -> str:
    """Why no hop may go to the runtime; empty when one may."""
    if runtime is None:
        return "runtime.none"
    if runtime.draining:
        return "runtime.draining"
    if runtime.crashes >= rules.max_crashes:
        return "runtime.crash_loop"
    return "runtime.offline" if runtime.host == AWAY else ""


def _through_runtime(tried: Sequence[Tried], runtime: RuntimeFacts, rules: ChainRules) -> Step:
    done = [hop.action for hop in tried]
    last = tried[-1].reason if tried else ""
    if runtime.alive and not done:
        return Step("live", "session.stale" if runtime.host == STALE else "session.live")
    fresh = runtime.silent_for <= rules.resume_within
    may_resume = runtime.can_resume and runtime.has_session and "spawn" not in done
    if may_resume and fresh and done.count("resume") < MAX_RESUMES:
        return Step("resume", last or "session.gone")
    if runtime.can_spawn and done.count("spawn") < MAX_SPAWNS:
        too_old = may_resume and not fresh
        return Step("spawn", "session.too_old" if too_old else last or "session.gone")
    return _without_runtime(last or "session.gone", rules)


def _without_runtime(why: str, rules: ChainRules) -> Step:
    return Step("fallback", why) if rules.fallback else Step("dead_letter", why)
