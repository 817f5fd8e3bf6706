"""What the agent knows of its conversation, as protocols. The platform implements them over its store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

Trust = Literal["unknown", "stranger", "member", "owner"]
_ORDER: dict[Trust, int] = {"unknown": 0, "stranger": 1, "member": 2, "owner": 3}


def rank(trust: Trust) -> int:
    """Higher is more trusted."""
    return _ORDER[trust]


@dataclass(frozen=True, slots=True)
class Picture:
    """An image or a PDF that came with a message."""

    blob: str
    media_type: str
    name: str = ""
    size: int = 0
    """In bytes."""


@dataclass(frozen=True, slots=True)
class ConversationMessage:
    """One admitted message of the conversation."""

    seq: int
    author: str
    """A name for people."""
    trust: Trust
    text: str
    addressed: bool = True
    by_us: bool = False
    """This agent's own reply."""
    pictures: tuple[Picture, ...] = ()
    files: tuple[str, ...] = ()
    """Where other attachments lie in the shell, or why one is not there."""
    quoted: str = ""
    """Somebody else's words that came with it: a forward, or the message it answers."""
    quote_is_ours: bool = False
    """The quoted words were said here before, by us or by the author."""
    at: str = ""
    """When, for the model: 2026-11-16 09:30 UTC."""
    background: bool = False
    """A schedule sent it: nobody waits for the answer."""
    identity: str = ""
    """The author's id at their service, whatever they call themselves."""
    ours: str = ""
    """Sentences of the platform that were sent with this agent's reply; the model did not say them."""
    number: int = 0
    """The number of this agent's own reply, for `History.answer`."""
    withheld: bool = False
    """This agent's own reply, left out because strangers' text may speak through its words."""

    @property
    def has_strangers_words(self) -> bool:
        """Whether a stranger wrote something in it."""
        return self.trust in ("stranger", "unknown") or (bool(self.quoted) and not self.quote_is_ours)


@dataclass(frozen=True, slots=True)
class Tombstone:
    """The line that stands for something which was taken out of the prompt, and leads back to it."""

    id: str
    gist: str
    to: str = ""
    """The last id, where it stands for a range of turns."""

    @property
    def line(self) -> str:
        """As the model reads it."""
        if self.to:
            return (
                f'[{self.id} to {self.to} evicted: {self.gist}. recall("{self.id}") gives the first of them]'
            )
        return f'[{self.id} evicted: {self.gist}. recall("{self.id}")]'


@dataclass(frozen=True, slots=True)
class Summary:
    """What is kept of everything up to a message."""

    text: str
    rules: tuple[str, ...] = ()
    """Users' standing rules, verbatim."""
    covers_to: int = 0
    """The last message it covers."""
    narrowed: bool = False
    """Strangers' words went into it."""
    asked: tuple[str, ...] = ()
    """What the run was asked to do, verbatim, by people who may ask. Kept like the rules while the run lasts."""
    id: str = ""
    """Its memory id; empty where memory is off."""
    covers: tuple[Tombstone, ...] = ()
    """The newest of what it stands for."""
    covers_more: int = 0
    """How many things it stands for beyond those; recalling the summary lists them."""

    def listing(self) -> list[str]:
        """What it stands for, line by line."""
        lines = [each.line for each in self.covers]
        if self.covers_more:
            lines.append(
                f'[{self.covers_more} more evicted: older ones. recall("{self.id}", full=true) lists them]'
            )
        return lines


@dataclass(frozen=True, slots=True)
class StopSignal:
    """Somebody, or something, ends the run."""

    code: str = "user.stop"
    sentence: str = "Stopped, as asked."


class Inbox(Protocol):
    """The live side of the conversation."""

    async def unread(self, after: int) -> Sequence[ConversationMessage]:
        """Admitted messages of others after this number, in order."""
        ...

    async def stopped(self) -> StopSignal:
        """Returns when somebody stops the run, within a second; never returns otherwise."""
        ...

    def paused(self) -> bool:
        """Whether somebody wants the run to do nothing more for now."""
        ...


class History(Protocol):
    """What came before, within the participant's epoch."""

    async def summary(self) -> Summary | None:
        """The latest checkpoint of earlier jobs, if there is one."""
        ...

    async def between(self, after: int, to: int, *, newest: int) -> Sequence[ConversationMessage]:
        """The messages with after < seq <= to, in order, at most the `newest` ones; our own included."""
        ...

    async def answer(self, number: int) -> str | None:
        """What this agent said in one of its own replies; None when there is no such reply."""
        ...


@dataclass(frozen=True, slots=True)
class Recollection:
    """One version of a memory, as a run may read it."""

    id: str
    version: int
    kind: str
    """turn, result, plan, summary, note or rule."""
    text: str
    author: str = ""
    trust: Trust = "member"
    untrusted: bool = False
    """Strangers' words are in it."""
    at: str = ""
    """When, for the model: 2026-11-16 09:30 UTC."""
    about: str = ""
    """What else the model should know of it, in our words."""
    score: float = 0
    """How well it fits what was searched for."""


@dataclass(frozen=True, slots=True)
class KnownRules:
    """The standing rules of a conversation."""

    live: Mapping[str, int] = field(default_factory=dict)
    """In force within the epoch, oldest first, with the number of the message that said them."""
    revoked: Mapping[str, int] = field(default_factory=dict)
    """Taken back or reworded by somebody. The same words in a later message are a rule again."""


class Memories(Protocol):
    """What a run may remember: what everybody in its conversation may know."""

    def new_id(self) -> str:
        """An id that nothing else ever has."""
        ...

    def turn_id(self, seq: int) -> str:
        """The id of a message of this conversation."""
        ...

    async def rules(self) -> KnownRules:
        """The standing rules as they are now."""
        ...

    async def get(self, memory_id: str, *, narrowed: bool) -> Recollection:
        """The version in force, if everybody here may know it; raises `gofer.errors.NotFound` with a sentence for the
        model. A narrowed run gets those of its own conversation alone, here and below."""
        ...

    async def search(self, query: str, *, narrowed: bool) -> Sequence[Recollection]:
        """What fits a query, best first, at most ten."""
        ...

    async def remind(self, said: str, *, history_after: int, narrowed: bool) -> Sequence[Recollection]:
        """What fits what was just said well enough to be shown without being asked for. Nothing of strangers, nothing
        of before the epoch, and nothing that is in the prompt: messages after `history_after`."""
        ...

    async def remember(self, text: str, audience: str, call_id: str, *, narrowed: bool) -> str:
        """Keep a note once for a call, however often that is made; returns its id. Raises GoferError for an audience
        that is wider than the room."""
        ...

    async def around(
        self, memory_id: str, count: int
    ) -> tuple[Sequence[Recollection], Sequence[Recollection]]:
        """What came just before it and just after it, at most `count` each."""
        ...


@dataclass(frozen=True, slots=True)
class QuestionAnswer:
    """What became of a question."""

    text: str = ""
    by: str = ""
    trust: Trust = "member"
    expired: bool = False


class Questions(Protocol):
    """Answers to what a run asked."""

    async def answer(self, call_id: str) -> QuestionAnswer | None:
        """The answer to the question of this call; None while it is open."""
        ...


@dataclass(frozen=True, slots=True)
class TaskResults:
    """What came of the tasks of one call, for the model."""

    text: str
    failed: bool = False
    """None of them was done."""
    untrusted: bool = False
    """Strangers' words may be in it."""
    cost: int = 0
    """Millionths of a dollar."""
    details: Mapping[str, object] = field(default_factory=dict)


class Delegations(Protocol):
    """Tasks that a run gives to worker runs."""

    async def refusal(self, count: int) -> str:
        """Why so many tasks cannot be taken on now; empty when they can."""
        ...

    async def results(self, call_id: str) -> TaskResults | None:
        """What came of the tasks of a call; None while they are not over."""
        ...


@dataclass(frozen=True, slots=True)
class Covers:
    """Which messages woke the job."""

    read_seq: int
    """Earlier jobs have dealt with everything up to this number."""
    extra: dict[str, str] = field(default_factory=dict)
    """Facts for the model that do not change during the job, such as the repository."""
    identity: str = ""
    """The blob with the text of who the agent is, for the journal."""
    digest: str = ""
    """The digest of that text, as people know it."""
