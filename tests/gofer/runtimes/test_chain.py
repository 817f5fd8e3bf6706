"""The order of hops: every branch as a row, and what must hold for whatever happens."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from gofer.runtimes.chain import (
    AWAY,
    BUSY,
    DECLINED,
    HERE,
    MAX_BUSY,
    MAX_RESUMES,
    OCCUPIED,
    STALE,
    ChainRules,
    RuntimeFacts,
    Tried,
    next_hop,
)

MANAGED = RuntimeFacts(can_resume=True, can_spawn=True)
GONE = replace(MANAGED, alive=False)
WITH, WITHOUT = ChainRules(fallback=True), ChainRules(fallback=False)
LIVE, RESUME, SPAWN = (
    Tried("live", "pane.gone"),
    Tried("resume", "resume.failed"),
    Tried("spawn", "spawn.failed"),
)


@pytest.mark.parametrize(
    ("tried", "runtime", "rules", "action", "why"),
    [
        ((), MANAGED, WITH, "live", "session.live"),
        ((), replace(MANAGED, host=STALE), WITH, "live", "session.stale"),
        ((), None, WITH, "fallback", "runtime.none"),
        ((), None, WITHOUT, "dead_letter", "runtime.none"),
        ((), replace(MANAGED, host=AWAY), WITH, "fallback", "runtime.offline"),
        ((), replace(MANAGED, draining=True), WITH, "fallback", "runtime.draining"),
        ((), replace(MANAGED, crashes=3), WITH, "fallback", "runtime.crash_loop"),
        ((), replace(MANAGED, crashes=2), WITH, "live", "session.live"),
        ((), GONE, WITH, "resume", "session.gone"),
        ((), replace(GONE, has_session=False), WITH, "spawn", "session.gone"),
        ((), replace(GONE, can_resume=False), WITH, "spawn", "session.gone"),
        ((), replace(GONE, silent_for=12 * 3600), WITH, "resume", "session.gone"),
        ((), replace(GONE, silent_for=12 * 3600 + 1), WITH, "spawn", "session.too_old"),
        ((), RuntimeFacts(alive=False), WITH, "fallback", "session.gone"),
        ((), RuntimeFacts(alive=False), WITHOUT, "dead_letter", "session.gone"),
        ((LIVE,), MANAGED, WITH, "resume", "pane.gone"),
        ((Tried("live", "runtime.silent"),), MANAGED, WITH, "resume", "runtime.silent"),
        ((LIVE,), replace(MANAGED, silent_for=50_000), WITH, "spawn", "session.too_old"),
        ((LIVE,), RuntimeFacts(), WITH, "fallback", "pane.gone"),
        ((LIVE, RESUME), MANAGED, WITH, "resume", "resume.failed"),
        ((LIVE, RESUME, RESUME), MANAGED, WITH, "spawn", "resume.failed"),
        ((LIVE, RESUME, RESUME, SPAWN), MANAGED, WITH, "fallback", "spawn.failed"),
        ((LIVE, RESUME, RESUME, SPAWN), MANAGED, WITHOUT, "dead_letter", "spawn.failed"),
        ((LIVE, RESUME), replace(MANAGED, crashes=3), WITH, "fallback", "runtime.crash_loop"),
        ((LIVE, RESUME), replace(MANAGED, host=AWAY), WITH, "fallback", "runtime.offline"),
        ((Tried("live", "deferred.typing"),), MANAGED, WITH, "fallback", "deferred.typing"),
        ((Tried("live", "pane.copy_mode"),), MANAGED, WITHOUT, "dead_letter", "pane.copy_mode"),
        ((Tried("live", "runtime.refused"),), MANAGED, WITH, "fallback", "runtime.refused"),
        ((LIVE, Tried("resume", "runtime.no_words")), MANAGED, WITHOUT, "dead_letter", "runtime.no_words"),
        ((Tried("live", BUSY),), MANAGED, WITH, "live", BUSY),
        ((Tried("live", BUSY),) * 3, MANAGED, WITH, "fallback", BUSY),
        ((Tried("live", BUSY),), GONE, WITH, "fallback", BUSY),
        ((Tried("fallback", "runtime.none"),), MANAGED, WITH, "dead_letter", "fallback.failed"),
    ],
)
def test_every_branch(
    tried: tuple[Tried, ...], runtime: RuntimeFacts | None, rules: ChainRules, action: str, why: str
) -> None:
    step = next_hop(tried, runtime, rules)
    assert (step.action, step.why) == (action, why)


def test_a_busy_runtime_is_tried_again_after_longer_and_longer() -> None:
    busy = Tried("live", BUSY)
    assert [next_hop([busy] * n, MANAGED, WITH).after for n in (1, 2)] == [15, 30]


REASONS = st.sampled_from(["pane.gone", "runtime.silent", "host.away", BUSY, *DECLINED, *OCCUPIED])
FACTS = st.none() | st.builds(
    RuntimeFacts,
    host=st.sampled_from([HERE, STALE, AWAY]),
    alive=st.booleans(),
    has_session=st.booleans(),
    can_resume=st.booleans(),
    can_spawn=st.booleans(),
    silent_for=st.floats(0, 100_000) | st.just(float("inf")),
    crashes=st.integers(0, 4),
    draining=st.booleans(),
)


@given(st.lists(st.tuples(FACTS, REASONS), min_size=20, max_size=20), st.booleans())
def test_whatever_happens_the_chain_ends_within_its_bounds(
    story: list[tuple[RuntimeFacts | None, str]], fallback: bool
) -> None:
    """Each hop fails for any reason while the runtime changes in any way."""
    tried: list[Tried] = []
    for facts, reason in story:
        step = next_hop(tried, facts, ChainRules(fallback))
        assert step == next_hop(list(tried), facts, ChainRules(fallback)), "the same state gives the same hop"
        if step.action == "dead_letter":
            break
        if step.action in ("live", "resume", "spawn"):
            assert facts is not None
            assert facts.host != AWAY
            assert not facts.draining
            assert facts.crashes < 3
        if step.action == "resume":
            assert facts is not None
            assert facts.can_resume
            assert facts.silent_for <= 12 * 3600
        if step.action in ("resume", "spawn"):
            assert not tried or tried[-1].reason not in (*OCCUPIED, *DECLINED), (
                "nothing is started beside a person, nor asked again of who declined"
            )
        tried.append(Tried(step.action, reason))
    else:
        raise AssertionError(f"it did not end: {tried}")
    actions = [hop.action for hop in tried]
    assert actions.count("resume") <= MAX_RESUMES
    assert actions.count("spawn") <= 1
    assert actions.count("fallback") == (1 if fallback else 0)
    assert actions.count("live") <= 1 + MAX_BUSY
