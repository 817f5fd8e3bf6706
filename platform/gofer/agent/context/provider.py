"""What came before the run: the last summary, and the conversation's messages since, by budget."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

from gofer.agent.conversation import History, Said, Summary
from gofer.agent.model import Block, Message
from gofer.agent.state import State
from gofer.agent.untrusted import note, plain, render

WITHHELD = (
    "Here you answered. You had read strangers' text by then, so your words are left out and cannot steer you. Where "
    "the request needs them, read them with earlier_answer, number {number}; from then on this run reaches nothing "
    "beyond this conversation."
)
NEWEST = 500
"""Messages read at most, whatever the conversation's length: the cost of a run must not grow with it."""


class ConversationProvider:
    """Reads the conversation once per run and remembers what it rendered."""

    def __init__(self, history: History) -> None:
        self._history = history
        self._earlier: Summary | None = None
        self._said: Sequence[Said] | None = None
        self._opening: tuple[tuple[int, int, Summary | None], list[Message]] | None = None

    async def start(self, to: int) -> tuple[int, int]:
        self._earlier = await self._history.summary()
        return (self._earlier.covers_to if self._earlier else 0), to

    async def history(self, state: State) -> Sequence[Said]:
        if self._said is None:
            self._earlier = await self._history.summary()
            after, to = state.history_after, state.history_to
            said = await self._history.between(after, to, newest=NEWEST) if to > after else ()
            self._said = said if _others_narrow(self._earlier, said) else [_withheld(one) for one in said]
        return [said for said in self._said if said.seq > state.history_after]

    async def summary(self, state: State) -> Summary | None:
        await self.history(state)
        return state.summary or self._earlier

    async def tainted(self, state: State) -> bool:
        said, summary = await self.history(state), await self.summary(state)
        return bool(summary and summary.narrowed) or any(one.has_strangers_words for one in said)

    async def opening(self, state: State) -> list[Message]:
        said, summary = await self.history(state), await self.summary(state)
        key = (state.history_after, len(said), summary)
        if self._opening is None or self._opening[0] != key:
            self._opening = (
                key,
                [*_summary(summary), *(made for one in said for made in _messages(one, state))],
            )
        return self._opening[1]


def _summary(summary: Summary | None) -> list[Message]:
    if summary is None:
        return []
    text = f"<summary>\nWhat came before, in short:\n{plain(summary.text)}\n"
    if summary.asked:
        text += "\nWhat was asked, word for word:\n"
        text += "".join(f"{plain(words)}\n" for words in summary.asked)
    if summary.rules:
        text += "\nStanding rules from users, in their own words:\n"
        text += "".join(f"- {plain(rule)}\n" for rule in summary.rules)
    return [{"role": "user", "content": [{"type": "text", "text": text + "</summary>"}]}]


def _others_narrow(earlier: Summary | None, said: Sequence[Said]) -> bool:
    """Whether a run that begins here is narrowed anyhow, so that nothing has to be kept from it."""
    return bool(earlier and earlier.narrowed) or any(
        one.has_strangers_words and not one.by_us for one in said
    )


def _withheld(said: Said) -> Said:
    """An answer of a narrowed run, left out: what strangers had the agent say would speak to this run as its own
    words. The agent can read it again, which narrows the run."""
    if not (said.by_us and said.has_strangers_words):
        return said
    return replace(said, text="", ours="", trust="member", withheld=True)


def _messages(said: Said, state: State) -> Iterator[Message]:
    if said.withheld:
        yield {"role": "user", "content": [note(WITHHELD.format(number=said.number))]}
        return
    if not said.by_us or not (said.text.strip() or said.ours):
        yield _message(said, state)
        return
    if said.text.strip():
        words: Block = {"type": "text", "text": said.text.strip()}
        yield {"role": "assistant", "content": [words], "by": "history"}
    if said.ours:
        # A model that reads such sentences as its own begins to say them.
        told = note(f"Gofer, not you, then told them: {plain(said.ours)}")
        yield {"role": "user", "content": [told]}


def _message(said: Said, state: State) -> Message:
    blocks: list[Block] = [block for block in render(said, state.trust) if block["type"] == "text"]
    if said.pictures:
        blocks.append({"type": "text", "text": f"({len(said.pictures)} image(s) or PDF(s), not shown again)"})
    return {"role": "user", "content": blocks}
