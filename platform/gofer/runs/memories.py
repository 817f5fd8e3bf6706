"""A run's memories over the store: what it evicts, sums up and is told as a rule is kept in the transaction that
journals it; what it recalls is read through one door."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import Connection, select

from gofer.agent.context.compressor import rule_texts, standing_rules
from gofer.agent.context.operations import fill, spoken_rules
from gofer.agent.conversation import KnownRules, Recollection, Tombstone
from gofer.agent.conversation import Trust as RunTrust
from gofer.agent.model import Block
from gofer.errors import Conflict, GoferError, NotFound
from gofer.jobs.kinds import TASK
from gofer.jobs.queue import Claim
from gofer.memory import changes, records
from gofer.memory.audience import audience, new_scope
from gofer.memory.notes import CHARACTERS_PER_TOKEN, EVENT, keep_note
from gofer.memory.recall import Recall
from gofer.memory.records import Covered, Memory, NewMemory, Source
from gofer.memory.scopes import conversation_scope, open_scope
from gofer.store.database import Database
from gofer.store.events import open_words
from gofer.store.events import record as record_event
from gofer.store.ids import new_id
from gofer.store.messages import open_stored
from gofer.store.tables import ASIDE, events, memories, messages, participants
from gofer.vault.envelope import DataKey, Vault
from gofer.vault.errors import Tampered, VaultError

_PAGE = 100
_NUMBER = re.compile(r"#?([0-9]{1,18})")
"""A message by the number that the prompt shows."""
_QUOTED = "\n\n(with words of somebody else:)\n"


FOUND, _SPARE = 10, 5
"""Memories that a search gives at most, and how many more are looked for."""
REMINDERS = 5
"""Memories that are shown at a run's start at most."""
MIN_SHARE = 0.18
"""Of the best possible score, below which a memory is not shown without being asked for."""


class StoreMemories:
    """The `Memories` of a run: what everybody in its conversation may know."""

    def __init__(
        self,
        database: Database,
        vault: Vault,
        claim: Claim,
        recall: Recall | None = None,
        *,
        remind: bool = True,
    ) -> None:
        self._database = database
        self._vault = vault
        self._claim = claim
        self._conversation = str(claim.conversation_id)
        self._recall = recall or Recall(database, vault)
        self._reminds = remind
        self._shown: set[str] = set()
        """What this run was shown."""
        self._used = False
        self._marked: set[str] = set()
        """Scopes that this run was marked for, because they cannot be read as they should."""

    def new_id(self) -> str:
        return new_id("mem")

    def turn_id(self, seq: int) -> str:
        return records.turn_id(self._conversation, seq)

    async def rules(self) -> KnownRules:
        found, damaged = await self._database.read(_known_rules, vault=self._vault, claim=self._claim)
        await self.tell_damaged(damaged)
        return found

    async def tell_damaged(self, ids: Sequence[str]) -> None:
        """Tell that memories of this conversation were changed or damaged, and mark the run."""
        if ids:
            scope_id = conversation_scope(self._conversation)
            self._recall.tell_damaged(scope_id, ids)
            await self._tell_degraded([scope_id])

    async def get(self, memory_id: str, *, narrowed: bool = False) -> Recollection:
        if (number := _NUMBER.fullmatch(memory_id)) is not None:
            memory_id = self.turn_id(int(number[1]))
        scopes = await self._scopes(narrowed)
        try:
            found = await self._database.read(
                _resolved, vault=self._vault, memory_id=memory_id, scopes=scopes
            )
        except VaultError:
            await self._tell_degraded([memory_id])
            raise
        self._use(memory_id in self._shown)
        return found

    def answered(self, text: str) -> None:
        """The run has ended with this answer, which may name what it was shown."""
        self._use(any(memory_id in text for memory_id in self._shown))

    def _use(self, used: bool) -> None:
        if used and not self._used:  # a run counts once
            self._used = True
            self._recall.counters.used += 1

    async def _scopes(self, narrowed: bool) -> tuple[str, ...]:
        return await self._database.read(
            audience,
            conversation_id=self._conversation,
            agents=[self._claim.agent_id] if self._claim.agent_id else (),
            narrowed=narrowed,
        )

    async def search(self, query: str, *, narrowed: bool) -> Sequence[Recollection]:
        # A few more, since what this run was just told is left out: the question fits itself best.
        results = await self._recall.search(await self._scopes(narrowed), query, FOUND + _SPARE)
        await self._tell_degraded(results.degraded)
        found = [each for each in results.found if not self._was_just_said(each.memory)][:FOUND]
        self._show(each.memory for each in found)
        return [replace(recollection(each.memory), score=each.score) for each in found]

    def _was_just_said(self, memory: Memory) -> bool:
        here = memory.kind == "turn" and memory.source.conversation_id == self._conversation
        return here and (memory.source.message_seq or 0) > self._claim.covers_from

    def _show(self, found: Iterable[Memory]) -> None:
        ids = {memory.id for memory in found}
        if ids and not self._shown:
            self._recall.counters.shown += 1
        self._shown |= ids

    async def remind(self, said: str, *, history_after: int, narrowed: bool) -> Sequence[Recollection]:
        if not self._reminds:
            return []
        results = await self._recall.search(await self._scopes(narrowed), said, 2 * REMINDERS)
        epochs = await self._database.read(_epochs, agent_id=self._claim.agent_id)
        await self._tell_degraded(results.degraded)
        fitting = [
            each.memory
            for each in results.found
            if each.share >= MIN_SHARE and self._may_remind(each.memory, history_after, epochs)
        ]
        self._show(fitting[:REMINDERS])
        return [recollection(memory) for memory in fitting[:REMINDERS]]

    def _may_remind(self, memory: Memory, history_after: int, epochs: Mapping[str, int]) -> bool:
        if memory.untrusted or memory.trust not in ("owner", "member"):
            return False
        place, seq = memory.source.conversation_id, memory.source.message_seq
        if memory.kind in ("note", "plan") or place is None or seq is None:
            return True
        in_prompt = place == self._conversation and (
            seq > history_after or memory.kind in ("rule", "summary")
        )
        return seq > epochs.get(place, 0) and not in_prompt

    async def _tell_degraded(self, degraded: Collection[str]) -> None:
        """Mark the run, once for each scope, so that whoever reads its answer can see that memory was not whole."""
        if scopes := sorted(set(degraded) - self._marked):
            self._marked.update(scopes)
            data = {"what": "degraded", "scopes": scopes, "reason": "memory.degraded"}
            await self._database.write(
                record_event,
                kind="memory.degraded",
                workspace_id=self._claim.workspace_id,
                conversation_id=self._conversation,
                data={**data, "job_id": self._claim.id},
            )

    async def remember(self, text: str, audience: str, call_id: str, *, narrowed: bool) -> str:
        return await self._database.write(
            _remember,
            vault=self._vault,
            claim=self._claim,
            text=text,
            wanted=audience,
            call_id=call_id,
            narrowed=narrowed,
        )

    async def around(
        self, memory_id: str, count: int
    ) -> tuple[Sequence[Recollection], Sequence[Recollection]]:
        return await self._database.read(
            _neighbours,
            vault=self._vault,
            memory_id=memory_id,
            count=count,
            conversation_id=self._conversation,
        )


def _resolved(connection: Connection, vault: Vault, memory_id: str, scopes: Collection[str]) -> Recollection:
    return recollection(records.resolve(connection, vault, memory_id, scopes=scopes))


def _epochs(connection: Connection, agent_id: str | None) -> dict[str, int]:
    """Where an agent's memory of each conversation begins, unless at its start."""
    query = select(participants.c.conversation_id, participants.c.epoch_seq).where(
        participants.c.agent_id == agent_id, participants.c.epoch_seq > 0
    )
    return {str(row.conversation_id): int(row.epoch_seq) for row in connection.execute(query)}


def _remember(
    connection: Connection, vault: Vault, claim: Claim, text: str, wanted: str, call_id: str, narrowed: bool
) -> str:
    """Keep a note of a run. Its id follows from the call, so a call that is made again keeps nothing twice."""
    conversation_id = str(claim.conversation_id)
    scope_id = new_scope(connection, conversation_id, claim.agent_id, wanted=wanted, narrowed=narrowed)
    digest = vault.mac_key("memory of a call").digest(claim.id, call_id)
    kept = keep_note(
        connection,
        vault,
        scope_id=scope_id,
        text=text,
        trust="stranger" if narrowed else "member",
        author="agent",
        source=Source(conversation_id, None, claim.id, call_id),
        untrusted=narrowed,
        memory_id=f"mem_{digest[:24]}",
        reason="tool",
    )
    return kept.id


def recollection(memory: Memory) -> Recollection:
    """A memory as a run reads it: a message with the words that came along, a summary with what it stands for."""
    text = memory.text
    if memory.quoted:
        text += _QUOTED + memory.quoted
    if memory.covers:
        lines = (Tombstone(each.id, each.gist, each.to).line for each in memory.covers)
        text += "\n\nWhat this stands for:\n" + "\n".join(lines)
    trust: RunTrust = memory.trust  # type: ignore[assignment]
    return Recollection(
        memory.id,
        memory.version,
        memory.kind,
        text,
        memory.author,
        trust,
        memory.untrusted,
        datetime.fromtimestamp(memory.valid_from, UTC).strftime("%Y-%m-%d %H:%M UTC"),
        memory.gist if memory.kind == "result" or not text.strip() else "",
    )


def _neighbours(
    connection: Connection, vault: Vault, memory_id: str, count: int, conversation_id: str
) -> tuple[list[Recollection], list[Recollection]]:
    """Messages before and after a message; results of the same run before and after a result."""
    if (turn := records.parse_turn(memory_id)) is not None:
        found = [_near_turns(connection, turn, count, before=before) for before in (True, False)]
    else:
        found = [_near_results(connection, memory_id, count, before=before) for before in (True, False)]
    before, after = (_readable(connection, vault, ids, conversation_id) for ids in found)
    return before, after


def _readable(
    connection: Connection, vault: Vault, ids: Iterable[str], conversation_id: str
) -> list[Recollection]:
    """Those of some memories that are there and can be read."""
    found = []
    for memory_id in ids:
        with suppress(NotFound, Tampered):
            found.append(_resolved(connection, vault, memory_id, (conversation_scope(conversation_id),)))
    return found


def _near_turns(connection: Connection, turn: tuple[str, int], count: int, *, before: bool) -> list[str]:
    conversation_id, seq = turn
    side = messages.c.seq < seq if before else messages.c.seq > seq
    order = messages.c.seq.desc() if before else messages.c.seq
    query = (
        select(messages.c.seq)
        .where(messages.c.conversation_id == conversation_id, side, messages.c.event.not_in(ASIDE))
        .order_by(order)
        .limit(count)
    )
    return [records.turn_id(conversation_id, seq) for seq in sorted(connection.execute(query).scalars())]


def _near_results(connection: Connection, memory_id: str, count: int, *, before: bool) -> list[str]:
    here = connection.execute(
        select(memories.c.job_id, memories.c.valid_from).where(
            memories.c.id == memory_id, memories.c.kind == "result", memories.c.version == 1
        )
    ).one_or_none()
    if here is None:
        return []
    side = memories.c.valid_from < here.valid_from if before else memories.c.valid_from > here.valid_from
    order = memories.c.valid_from.desc() if before else memories.c.valid_from
    query = (
        select(memories.c.id)
        .where(memories.c.job_id == here.job_id, memories.c.kind == "result", memories.c.version == 1, side)
        .order_by(order)
        .limit(count)
    )
    found = list(connection.execute(query).scalars())
    return found[::-1] if before else found


# What a run's events leave behind.


def keep_event(
    connection: Connection, vault: Vault, claim: Claim, key: DataKey, kind: str, data: Mapping[str, Any]
) -> None:
    """Remember what an event says, in its transaction: rules when they are read, results when they are evicted, a
    summary when it is made."""
    if kind == "turn.started" and claim.kind != TASK:  # a task's words are no person's rules
        keep_rules(connection, vault, claim, spoken_rules(standing_rules, rule_texts(_blocks(data))))
    if data.get("evicted"):
        _keep_results(connection, vault, claim, key, data["evicted"])
    if kind == "context.checkpoint" and data.get("id"):
        _keep_summary(connection, vault, claim, data)
        if claim.kind != TASK:
            keep_rules(connection, vault, claim, data["spoken_rules"])
        size = data.get("size", 0)
        _tell(connection, claim, "summarise", data["id"], kind, size, _tokens(data["summary"]))
    if data.get("pieces"):
        _tell_recalled(connection, claim, kind, data["pieces"])


def _tell(
    connection: Connection, claim: Claim, what: str, memory_id: str, reason: str, before: int, after: int
) -> None:
    """Tell the log what happened to working memory, in tokens."""
    about = {"what": what, "id": memory_id, "reason": reason, "job_id": claim.id}
    data = {**about, "tokens_before": before, "tokens_after": after}
    record_event(connection, EVENT, claim.workspace_id, conversation_id=claim.conversation_id, data=data)


def _tell_recalled(connection: Connection, claim: Claim, kind: str, pieces: Iterable[Any]) -> None:
    """A recall for each memory that was shown, with the tokens it adds to the prompt."""
    shown: dict[str, int] = {}
    for piece in pieces:
        if not isinstance(piece, str):
            shown[piece["id"]] = shown.get(piece["id"], 0) + piece["end"] - piece["start"]
    reason = "tool" if kind == "tool.finished" else "run.started"
    for memory_id, length in shown.items():
        _tell(connection, claim, "recall", memory_id, reason, 0, int(length / CHARACTERS_PER_TOKEN))


def _tokens(text: str) -> int:
    return int(len(text) / CHARACTERS_PER_TOKEN)


def _blocks(data: Mapping[str, Any]) -> list[Block]:
    return [block for block in data["input"] if block["type"] == "text"]


def _keep_results(
    connection: Connection, vault: Vault, claim: Claim, key: DataKey, evicted: Sequence[Mapping[str, str]]
) -> None:
    """Copy the results as the journal has them: its events are pruned one day, and the ids must still resolve."""
    wanted = {each["call_id"]: each for each in evicted}
    finished = (events.c.job_id == claim.id) & (events.c.kind == "tool.finished")
    rows = connection.execute(select(events.c.id, events.c.data).where(finished)).all()
    ids = [row.id for row in rows if row.data["call_id"] in wanted]
    for start in range(0, len(ids), _PAGE):
        query = select(events).where(events.c.id.in_(ids[start : start + _PAGE])).order_by(events.c.id)
        for row in connection.execute(query).mappings():
            words = open_words(key, dict(row))
            if words.get("pieces"):
                continue  # was recalled, so it is kept under its own id
            stone = wanted[row["data"]["call_id"]]
            line = Tombstone(stone["id"], stone["gist"]).line
            _tell(connection, claim, "evict", stone["id"], "room", _tokens(words["content"]), _tokens(line))
            new = NewMemory(
                "result",
                conversation_scope(str(claim.conversation_id)),
                words["content"] or "(no output)",
                "stranger" if row["data"]["untrusted"] else "member",
                Source(claim.conversation_id, None, claim.id, row["data"]["call_id"]),
                stone["gist"],
                row["data"]["name"],
                row["data"]["untrusted"],
            )
            changes.remember(connection, vault, new, memory_id=stone["id"], at=row["at"])


def _keep_summary(connection: Connection, vault: Vault, claim: Claim, data: Mapping[str, Any]) -> None:
    new = NewMemory(
        "summary",
        conversation_scope(str(claim.conversation_id)),
        data["summary"] or "(empty)",
        "stranger" if data["narrowed"] else "member",
        Source(claim.conversation_id, data["covers_to"], claim.id),
        f"a summary up to message {data['covers_to']}",
        "",
        data["narrowed"],
        [Covered(**each) for each in data["covers"]],
    )
    changes.remember(connection, vault, new, memory_id=data["id"])


def keep_rules(connection: Connection, vault: Vault, claim: Claim, spoken: Mapping[str, int]) -> None:
    """Remember sentences that read like standing rules. One that was taken back is a rule again when it is said
    again; one of before the epoch as well."""
    if not spoken:
        return
    conversation_id = str(claim.conversation_id)
    scope_id = conversation_scope(conversation_id)
    epoch = _epoch(connection, claim)
    keys = open_scope(connection, vault, scope_id)
    known = {each.text: each for each in _rules(connection, vault, scope_id)}
    for text, seq in spoken.items():
        found = known.get(text)
        source = Source(conversation_id, seq, claim.id)
        if found is None:
            author, trust = _author(connection, vault, conversation_id, seq)
            new = NewMemory("rule", scope_id, text, trust, source, author=author)
            changes.remember(connection, vault, new, memory_id=records.rule_id(keys, text))
        elif seq > (found.source.message_seq or 0) and not _in_force(found, epoch):
            with suppress(Conflict):  # another run has just read the same
                changes.say_again(connection, vault, found, source)


def _author(connection: Connection, vault: Vault, conversation_id: str, seq: int) -> tuple[str, str]:
    row = connection.execute(
        select(messages).where(messages.c.conversation_id == conversation_id, messages.c.seq == seq)
    ).one_or_none()
    if row is None or row.sealed is None:
        return "", "member"
    stored = open_stored(open_scope(connection, vault, conversation_scope(conversation_id)).seal, row)
    return stored.message.author.name or stored.message.author.id, stored.trust.value


def _rules(connection: Connection, vault: Vault, scope_id: str) -> list[Memory]:
    """Every rule there ever was, as it stands now; one that was taken back as it was said last."""
    found = [
        rule
        for state in (records.LIVE, records.FORGOTTEN)
        for rule in records.in_force(connection, vault, scope_id, kind="rule", state=state)
    ]
    return sorted(found, key=lambda rule: rule.source.message_seq or 0)


def _in_force(rule: Memory, epoch: int) -> bool:
    return rule.state == records.LIVE and (rule.source.message_seq is None or rule.source.message_seq > epoch)


def rules_of_run(connection: Connection, vault: Vault, claim: Claim) -> KnownRules:
    """The standing rules of a run's conversation, within its epoch."""
    return _known_rules(connection, vault, claim)[0]


def _known_rules(connection: Connection, vault: Vault, claim: Claim) -> tuple[KnownRules, list[str]]:
    """The same, and the ids of those that cannot be read."""
    scope_id, epoch = conversation_scope(str(claim.conversation_id)), _epoch(connection, claim)
    rules = _rules(connection, vault, scope_id)
    live = {rule.text: rule.source.message_seq or 0 for rule in rules if _in_force(rule, epoch)}
    revoked = {rule.text: rule.source.message_seq or 0 for rule in rules if rule.state == records.FORGOTTEN}
    for rule in rules:
        if rule.version > 1:
            for old in records.versions(connection, vault, rule.id, scopes=(scope_id,)):
                if old.text and old.text not in live:
                    revoked.setdefault(old.text, rule.source.message_seq or 0)
    return KnownRules(live, revoked), [rule.id for rule in rules if rule.state == records.UNREADABLE]


def _epoch(connection: Connection, claim: Claim) -> int:
    query = select(participants.c.epoch_seq).where(participants.c.id == claim.participant_id)
    return int(connection.execute(query).scalar() or 0)


def filled_in(
    connection: Connection, vault: Vault, data: dict[str, Any], redact: Callable[[str], str]
) -> dict[str, Any]:
    """The data of a `tool.finished` with the words that its run recalled; a line in the place of what is purged."""
    if not data.get("pieces"):
        return data

    def text_of(memory_id: str, version: int) -> str | None:
        try:
            return recollection(records.reopen(connection, vault, memory_id, version)).text
        except GoferError:
            return None

    return {**data, "content": redact(fill(data["pieces"], text_of))}
