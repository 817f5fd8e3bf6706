"""Working memory: what the next request contains, and the operations that change it.

EVICT takes results of tools out and leaves a line in the place of each. SUMMARIZE makes a summary of what is old, which
stands for everything it covers. LOAD brings something back in, at the end. UPDATE gives a memory new words; a run keeps
the version that it has loaded. Each is one event of the journal, so the bytes before it change at most once for all
that it touches, and what it takes out is copied in the transaction that writes the event.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from gofer.agent.conversation import (
    ConversationMessage,
    KnownRules,
    Memories,
    Recollection,
    Summary,
    Tombstone,
    Trust,
)
from gofer.agent.interfaces import Point
from gofer.agent.state import Call, Round, State
from gofer.agent.transcript import plain, quoted, quotes
from gofer.sanitize import gist
from gofer.tool import ToolResult

PAGE = 4_000
"""Characters of a memory that are loaded at once, unless the whole is asked for."""
MAX_ASKED, MAX_GIVEN = 60, 20
"""Characters of a call and of its result in a gist: enough to know it again, and cheap to have in every prompt."""
NEIGHBOUR = 1_000
"""Characters of each memory beside it."""
Piece = str | Mapping[str, Any]
"""Words of ours, or a place in a memory."""


def evict(calls: Iterable[Call], memories: Memories | None) -> Point:
    """EVICT: the results of these calls leave the prompt. A call and its result stay together: the call is still
    there, and a line stands in the place of the result."""
    gone = list(calls)
    data: dict[str, Any] = {"call_ids": [call.id for call in gone]}
    if memories is not None:
        data["evicted"] = tombstones(gone, memories)
    return Point("context.cleared", data)


def tombstones(calls: Iterable[Call], memories: Memories) -> list[dict[str, str]]:
    """An id and a gist for each result. What was recalled has an id already."""
    return [
        {"call_id": call.id, "id": _recalled(call) or memories.new_id(), "gist": call_gist(call)}
        for call in calls
        if call.result is not None
    ]


def _recalled(call: Call) -> str:
    pieces = call.result.get("pieces", ()) if call.result else ()
    return next((str(piece["id"]) for piece in pieces if isinstance(piece, dict)), "")


def call_gist(call: Call) -> str:
    """What a call was and gave, on one line."""
    content = str(call.result["content"]) if call.result else ""
    asked = " ".join(str(value) for value in call.input.values() if isinstance(value, str | int))
    return gist(
        f"{call.name} {gist(asked, MAX_ASKED)}: {gist(content, MAX_GIVEN)} ({len(content)} characters)"
    )


def summarize(
    state: State,
    before: Summary | None,
    old: Sequence[ConversationMessage],
    gone: Sequence[Round],
    data: Mapping[str, Any],
    memories: Memories | None,
) -> Point:
    """SUMMARIZE: `data` says what is kept in words; here it gets an id and says what it stands for, so that each of
    these can still be recalled."""
    if memories is None:
        return Point("context.checkpoint", dict(data))
    calls = [call for round_ in gone for call in round_.calls if call.result is not None]
    evicted = tombstones([call for call in calls if state.cleared.get(call.id) is None], memories)
    stones = {each["call_id"]: Tombstone(each["id"], each["gist"]) for each in evicted}
    stones |= {call.id: stone for call in calls if (stone := state.cleared.get(call.id)) is not None}
    first = before.covers_to + 1 if before is not None and before.id else _first_seq(old, gone)
    covers = [*_turns(first, data["covers_to"], memories), *_summary_before(before)]
    covers += [stones[call.id] for call in calls]
    return Point(
        "context.checkpoint",
        {
            **data,
            "id": memories.new_id(),
            "evicted": evicted,
            "covers": [{"id": each.id, "gist": each.gist, "to": each.to} for each in covers],
        },
    )


def _first_seq(old: Sequence[ConversationMessage], gone: Sequence[Round]) -> int:
    blocks = [block for round_ in gone for block in round_.input]
    seqs = [said.seq for said in old] + [block["origin"]["seq"] for block in blocks if "origin" in block]
    return min(seqs, default=1)


def _turns(first: int, last: int, memories: Memories) -> list[Tombstone]:
    """One line for all messages: their ids are made of their numbers."""
    if last < first:
        return []
    if first == last:
        return [Tombstone(memories.turn_id(last), f"message {last}")]
    about = f"messages {first} to {last}, each by the number at the end of its id"
    return [Tombstone(memories.turn_id(first), about, memories.turn_id(last))]


def _summary_before(before: Summary | None) -> list[Tombstone]:
    if before is None or not before.id:
        return []
    return [Tombstone(before.id, f"the summary up to message {before.covers_to}, with what it stands for")]


def spoken_rules(
    rules: Callable[[Iterable[str]], Sequence[str]], said: Iterable[tuple[str, int]]
) -> dict[str, int]:
    """Sentences that read like rules, oldest first, with the number of the last message that says them."""
    found: dict[str, int] = {}
    for text, seq in said:
        found |= dict.fromkeys(rules([text]), seq)
    return found


def rules_in_force(known: KnownRules, spoken: Mapping[str, int], before: Iterable[str]) -> list[str]:
    """The rules that a summary pins: those in force, those just said, and those of an older summary that nobody has
    taken back."""
    found = dict.fromkeys(rule for rule in before if rule not in known.revoked)
    found |= dict.fromkeys(known.live)
    found |= {rule: None for rule, seq in spoken.items() if seq > known.revoked.get(rule, -1)}
    return list(found)


def load(
    found: Recollection,
    of_run: Trust,
    *,
    start: int = 0,
    length: int = PAGE,
    neighbours: tuple[Sequence[Recollection], Sequence[Recollection]] = ((), ()),
) -> ToolResult:
    """LOAD: a memory's exact words, or a part of them, with what came before and after it. Quoted where a stranger
    wrote it, which narrows the run as reading it the first time did."""
    if start > len(found.text):
        return ToolResult(
            f"{found.id} has {len(found.text)} characters; none begins at {start}.", is_error=True
        )
    end = min(len(found.text), start + length)
    before, after = neighbours
    pieces: list[Piece] = [part for each in before for part in _shown(each, of_run, 0, NEIGHBOUR)]
    pieces += _shown(found, of_run, start, end)
    pieces += [part for each in after for part in _shown(each, of_run, 0, NEIGHBOUR)]
    shown = {each.id: each for each in (*before, found, *after)}
    untrusted = any(each.untrusted for each in shown.values())
    return ToolResult(
        fill(pieces, lambda memory_id, _: shown[memory_id].text), untrusted=untrusted, pieces=tuple(pieces)
    )


def _shown(found: Recollection, of_run: Trust, start: int, end: int) -> list[Piece]:
    whole = len(found.text)
    end = min(end, whole)
    who = f", {plain(found.author)}, {found.trust}" if found.kind == "turn" else ""
    about = f"; {found.about}" if found.about else ""
    range_ = (
        f"all {whole} characters" if (start, end) == (0, whole) else f"characters {start} to {end} of {whole}"
    )
    more = f'; go on with recall("{found.id}", start={end})' if end < whole else ""
    head = f"[{found.id}, {found.kind}{who}{', ' + found.at if found.at else ''}: {range_}{more}{about}]\n"
    place = {"id": found.id, "version": found.version, "start": start, "end": end}
    # A tool's result stays what it was; what people wrote must not look like a mark of ours.
    if found.kind not in ("result", "summary"):
        place["marks"] = "quoted" if found.untrusted or quotes(found.trust, of_run) else "plain"
    return [head, place, "\n"]


def listing(found: Sequence[Recollection], of_run: Trust) -> ToolResult:
    """What a search found: ids, dates, who, score, and how each begins. Strangers' words are left out, so that a search
    narrows no run; recalling one by its id does."""
    if not found:
        return ToolResult("Nothing that may be recalled here fits. Try other words, or ask.")
    pieces: list[Piece] = []
    for each in found:
        pieces += _glimpse(each, f", score {each.score:.1f}")
    shown = {each.id: each.text for each in found}
    return ToolResult(fill(pieces, lambda memory_id, _: shown[memory_id]), pieces=tuple(pieces))


def reminder(found: Sequence[Recollection], most: int, size: Callable[[str], int]) -> tuple[list[Piece], str]:
    """What is shown of memories at a run's start, in at most so many tokens: the pieces, and their words."""
    shown = {each.id: each.text for each in found}
    pieces: list[Piece] = [REMINDER]
    words = ""
    for each in found:
        more = [*pieces, *_glimpse(each, "")]
        whole = fill([*more, REMINDED], lambda memory_id, _: shown[memory_id])
        if size(whole) > most:
            break
        pieces, words = more, whole
    return ([*pieces, REMINDED], words) if words else ([], "")


REMINDER = '<note>\nFrom memory, perhaps of use here; recall(id="…") gives more of one:\n'
REMINDED = "</note>"
GLIMPSE = 300
"""Characters of each memory in a list."""


def _glimpse(found: Recollection, score: str) -> list[Piece]:
    who = "" if found.untrusted or not found.author else f", {plain(found.author)}"
    head = f"[{found.id}, {found.kind}{who}{', ' + found.at if found.at else ''}{score}]\n"
    if found.untrusted:
        return [f"{head}(strangers' words: recalling it narrows this run)\n"]
    end = min(len(found.text), GLIMPSE)
    return [head, {"id": found.id, "version": found.version, "start": 0, "end": end, "marks": "quoted"}, "\n"]


def fill(pieces: Iterable[Piece], text_of: Callable[[str, int], str | None]) -> str:
    """The words of what was recalled. `text_of` gives a version's text, or None for what cannot be read any more."""
    return "".join(piece if isinstance(piece, str) else _filled(piece, text_of) for piece in pieces).rstrip(
        "\n"
    )


def _filled(piece: Mapping[str, Any], text_of: Callable[[str, int], str | None]) -> str:
    text = text_of(piece["id"], piece["version"])
    if text is None:
        return f"[{piece['id']} cannot be read any more]"
    words = text[piece["start"] : piece["end"]]
    marks = piece.get("marks")
    return words if not marks else quoted(plain(words)) if marks == "quoted" else plain(words)


def placeholder(pieces: Iterable[Piece]) -> str:
    """The same without anybody's words, for whoever reads the journal only."""
    return "".join(
        piece if isinstance(piece, str) else f"({piece['id']}, version {piece['version']})"
        for piece in pieces
    ).rstrip("\n")
