"""Whatever happens to a shell, in any order: no command ends twice, begins twice, or is forgotten."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from gofer_sandbox.shell.machine import TRANSITIONS, Action, Event, State, step

ENDS = (Action.END, Action.END_WITH_SHELL)


@given(st.lists(st.sampled_from(Event), max_size=40))
def test_any_order_of_events(events: list[Event]) -> None:
    state, running = State.STARTING, False
    for event in events:
        before = state
        state, actions = step(state, event)
        ended = sum(action in ENDS for action in actions)
        running = running or (before is State.IDLE and event is Event.SUBMITTED)
        assert ended == 0 or running, "only what was given can end"
        running = running and not ended
        assert running == (state in (State.RUNNING, State.FALLEN, State.UNBEGUN)), (
            "until it ends, it is known of"
        )
        if Action.SUBMIT_AGAIN in actions:
            assert before is State.UNBEGUN, "only what nobody read is given again"
        if event is Event.DIED and before in (State.IDLE, State.RUNNING):
            assert actions.index(Action.NOTE_LOSS) < actions.index(Action.GO), (
                "a loss is noted before the next"
            )
        if Action.GO in actions and event is Event.DIED:
            assert actions.index(Action.GIVE_STATE) < actions.index(Action.GO)


def test_every_state_can_be_left_and_every_event_matters() -> None:
    assert {state for state, _ in TRANSITIONS} == set(State)
    assert {event for _, event in TRANSITIONS} == set(Event)
    assert {action for _, actions in TRANSITIONS.values() for action in actions} == set(Action)
