"""What a shell can be, and what becomes of it: every transition there is, as a table.

The same over every wire. What is not in the table is ignored: a report that comes twice, one of a command that has
ended, the news of a death that is known.
"""

from __future__ import annotations

from enum import IntEnum, auto


class State(IntEnum):
    """Of the shell, as the server knows it."""

    STARTING = auto()
    """There is none, and the next is on its way."""
    IDLE = auto()
    """It waits for a command."""
    RUNNING = auto()
    """It was given a command and has not reported its end."""
    FALLEN = auto()
    """It ended with its command; the next is on its way."""
    UNBEGUN = auto()
    """It ended without having read the command it was given; the next is on its way and gets that command."""


class Event(IntEnum):
    """What can happen to it."""

    READY = auto()
    """A shell came up."""
    SUBMITTED = auto()
    """A command was handed to it."""
    DONE = auto()
    """It reported the end of the command that it was given."""
    DIED = auto()
    """It ended."""
    DIED_AGAIN = auto()
    """The keeper still waits to be told to go on."""
    UNREAD = auto()
    """The keeper found the command's line where the shell should have read it."""


class Action(IntEnum):
    """What the server does about it, in the order of the table."""

    NOTE_LOSS = auto()
    """Put in the journal what no snapshot has, before another shell is let go."""
    GIVE_STATE = auto()
    """Prepare the next shell's state; none, when the last one did not come up with it."""
    GO = auto()
    """Let the keeper start the next shell."""
    RECOGNISE = auto()
    """Put in the journal who the shell is."""
    END = auto()
    """The command has ended: take the rest of its output and put that in the journal."""
    END_WITH_SHELL = auto()
    """The command ended with its shell, whose exit code is its own."""
    SUBMIT_AGAIN = auto()
    """Hand the command, which never began, to the shell that came up."""


_NEXT_SHELL = (Action.GIVE_STATE, Action.GO)

TRANSITIONS: dict[tuple[State, Event], tuple[State, tuple[Action, ...]]] = {
    (State.STARTING, Event.READY): (State.IDLE, (Action.RECOGNISE,)),
    (State.STARTING, Event.DIED): (State.STARTING, _NEXT_SHELL),
    (State.STARTING, Event.DIED_AGAIN): (State.STARTING, (Action.GO,)),
    (State.IDLE, Event.SUBMITTED): (State.RUNNING, ()),
    (State.IDLE, Event.DIED): (State.STARTING, (Action.NOTE_LOSS, *_NEXT_SHELL)),
    (State.RUNNING, Event.DONE): (State.IDLE, (Action.END,)),
    (State.RUNNING, Event.DIED): (State.FALLEN, (Action.NOTE_LOSS, *_NEXT_SHELL)),
    (State.FALLEN, Event.UNREAD): (State.UNBEGUN, (Action.GO,)),
    (State.FALLEN, Event.READY): (State.IDLE, (Action.RECOGNISE, Action.END_WITH_SHELL)),
    (State.FALLEN, Event.DIED): (State.FALLEN, _NEXT_SHELL),
    (State.FALLEN, Event.DIED_AGAIN): (State.FALLEN, (Action.GO,)),
    (State.UNBEGUN, Event.READY): (State.RUNNING, (Action.RECOGNISE, Action.SUBMIT_AGAIN)),
    (State.UNBEGUN, Event.DIED): (State.UNBEGUN, _NEXT_SHELL),
    (State.UNBEGUN, Event.DIED_AGAIN): (State.UNBEGUN, (Action.GO,)),
}


def step(state: State, event: Event) -> tuple[State, tuple[Action, ...]]:
    """Where an event leads, and what to do on the way."""
    return TRANSITIONS.get((state, event), (state, ()))
