"""The memory manager: tidies the notes of a scope in a job of its own, never in the path of an answer.

Notes that say the same become one. Of two that contradict each other the newer counts, and the older can still be read
by its id and restored. Both are found by rule; a model, where one may be asked, judges what no rule can, and writes
what a long note is about. Each change is a transaction that looks again, so a job that dies goes on where it was, and
nothing is done twice.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice

from sqlalchemy import Connection, func, select

from gofer.crash import crash_point
from gofer.errors import Conflict, GoferError, NotFound
from gofer.jobs.queue import SERVICE, submit
from gofer.memory import changes
from gofer.memory.notes import forget_memory, tell
from gofer.memory.records import LIVE, Memory, readable
from gofer.memory.scopes import open_scope
from gofer.memory.terms import text_terms
from gofer.sanitize import gist
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.database import Database
from gofer.store.tables import JobState, in_state, jobs, memories
from gofer.vault.envelope import Vault

MEMORY = "memory"
"""The kind of job that tidies the notes of a scope, or sums up what a participant has read."""
BY = "memory manager"
"""The name under which the manager forgets memories."""
MAX_NOTES = 1000
"""Notes of a scope that are looked at in one job, the newest."""
MAX_CHANGES = 50
"""Of one job; the next note makes another."""
MAX_JUDGED = 20
"""Pairs, and long notes, that a model is asked about in one job."""
NO_BUDGET, NO_MODEL, SLOW_MODEL = "memory.no_budget", "memory.no_model", "memory.slow_model"
"""Why a job did by rule what a model should have done."""
_BY_RULE = {
    NO_BUDGET: "the agent's budget for its memories was used up (`memory_day_dollars` raises it)",
    NO_MODEL: "the agent's model could not be asked",
    SLOW_MODEL: "the model did not answer in time, and is asked again later",
}
_LATEST_JOBS = 2000
"""Of all kinds, that are looked through for those."""
LONG = 400
"""Characters of a note whose beginning does not say what it is about."""
_ALIKE = 0.5
"""Share of words that two notes have in common to be worth a look."""
_PENDING = in_state(JobState.READY, JobState.BLOCKED, JobState.RUNNING, JobState.SCHEDULED, JobState.WAITING)
_WORDS = re.compile(r"\w+")
_NEGATIONS = frozenset({
    "not", "no", "never", "none", "dont", "doesnt", "isnt", "nicht", "kein",
    "keine", "keinen", "nie", "pas", "jamais", "nunca", "non", "mai", "não",
    "geen", "niet", "не", "нет",
})  # fmt: skip
_IS = r"(?:is|are|was|ist|sind|est|sont|es|son|é|è|zijn)(?:\s(?:called|named))?|=|heißt|heisst"
_STATEMENT = re.compile(rf"(?P<about>\S.{{2,200}}?\s(?:{_IS}))[:\s]\s*(?P<value>\S.{{0,80}})", re.I | re.S)
_NAMES = re.compile(r"(?:called|named|heißt|heisst)$", re.I)
_RANK = {"owner": 2, "member": 1}


def ensure_tidying(connection: Connection, scope_id: str) -> bool:
    """Make the job that tidies a scope, unless there is one; whether it was made."""
    return ensure_job(connection, f"{MEMORY}:{scope_id}", {"scope": scope_id})


def ensure_job(connection: Connection, lane: str, payload: dict[str, str], delay: float = 0) -> bool:
    """Make a job of the memory manager, unless its lane has one; whether it was made."""
    there = select(jobs.c.id).where(jobs.c.lane == lane, _PENDING).limit(1)
    if connection.execute(there).first() is not None:
        return False
    submit(
        connection,
        workspace_id=FIRST_WORKSPACE,
        kind=MEMORY,
        lane=lane,
        pool=SERVICE,
        payload=payload,
        delay=delay,
    )
    return True


def by_rule_lately(connection: Connection) -> list[str]:
    """What people are told when a model should have tidied memories and rules did it."""
    last = connection.execute(select(func.max(jobs.c.id))).scalar() or 0
    query = select(jobs.c.reason, func.count()).where(jobs.c.kind == MEMORY, jobs.c.id > last - _LATEST_JOBS)
    found = connection.execute(
        query.where(jobs.c.reason.in_(_BY_RULE)).group_by(jobs.c.reason).order_by(jobs.c.reason)
    )
    return [f"Rules tidied memories {count} times lately: {_BY_RULE[why]}." for why, count in found]


@dataclass(frozen=True, slots=True)
class NotePair:
    """Two notes of which the newer takes the older's place."""

    kept: Memory
    gone: Memory
    what: str
    """merge or contradiction."""
    why: str
    forgets: bool = False
    """The same words, so that nothing is lost when the older is forgotten."""


@dataclass(frozen=True, slots=True)
class Judgement:
    """What a model says: a verdict for each pair (same, contradicts or different), and what each text is about."""

    verdicts: Sequence[str]
    gists: Sequence[str]


Judge = Callable[[Sequence[tuple[str, str]], Sequence[str]], Awaitable[Judgement | None]]
"""Asks a model about pairs of notes and long notes; None when there is no model, no money, or no answer in time."""


class NoteTidier:
    """Tidies the notes of one scope."""

    def __init__(self, database: Database, vault: Vault) -> None:
        self._database = database
        self._vault = vault

    async def tidy(self, scope_id: str, judge: Judge | None = None) -> int:
        """Change some; returns how many changes that were."""
        try:
            notes = await self._database.read(_notes, vault=self._vault, scope_id=scope_id)
            found = list(islice(by_rule(notes), MAX_CHANGES))
            for each in found:
                await self._apply(each)
            if judge is None:
                return len(found)
            gone = {each.gone.id for each in found}
            left = [note for note in notes if note.id not in gone]
            return len(found) + await self._judged(left, judge)
        except (NotFound, GoferError):
            return 0  # purged, or its key is lost, which doctor says

    async def _judged(self, notes: Sequence[Memory], judge: Judge) -> int:
        pairs = list(islice(alike(notes), MAX_JUDGED))
        long = [note for note in notes if _wants_gist(note)][:MAX_JUDGED]
        if not pairs and not long:
            return 0
        said = await judge([(newer.text, older.text) for newer, older in pairs], [note.text for note in long])
        if said is None:
            return 0
        found = []
        for (newer, older), verdict in zip(pairs, said.verdicts, strict=False):
            what = {"same": "merge", "contradicts": "contradiction"}.get(verdict)
            if what and may_replace(newer, older):
                found.append(NotePair(newer, older, what, f"a model says so of {older.id}"))
        for each in found:
            await self._apply(each)
        for note, about in zip(long, said.gists, strict=False):
            await self._database.write(_keep_gist, vault=self._vault, note=note, about=about)
        return len(found)

    async def _apply(self, found: NotePair) -> None:
        await self._database.write(_merge, vault=self._vault, found=found)
        crash_point("memory.tidied")


def _notes(connection: Connection, vault: Vault, scope_id: str) -> list[Memory]:
    """The notes in force, newest first."""
    query = (
        select(memories)
        .where(memories.c.scope_id == scope_id, memories.c.kind == "note", memories.c.state == LIVE)
        .where(memories.c.valid_to.is_(None), memories.c.sealed.is_not(None))
        .order_by(memories.c.valid_from.desc(), memories.c.id)
        .limit(MAX_NOTES)
    )
    return readable(open_scope(connection, vault, scope_id), connection.execute(query).all())[0]


def by_rule(newest_first: Sequence[Memory]) -> Iterator[NotePair]:
    """What rules find: the same words, all words of an older note, another value for the same thing, its opposite."""
    gone: set[str] = set()
    words: dict[str, Memory] = {}
    for note in newest_first:
        said = " ".join(_WORDS.findall(note.text.casefold())) or note.id
        kept = words.setdefault(f"{note.untrusted} {said}", note)
        if kept is not note:
            gone.add(note.id)
            yield NotePair(kept, note, "merge", f"says the same as {note.id}", forgets=True)
    left = [note for note in newest_first if note.id not in gone]
    for newer, older, is_within in _near(left):
        if newer.id in gone or older.id in gone or not may_replace(newer, older):
            continue
        if _contradicts(newer.text, older.text):
            gone.add(older.id)
            yield NotePair(newer, older, "contradiction", f"is newer than {older.id} and says otherwise")
        elif is_within and _figures(newer.text) == _figures(older.text):
            gone.add(older.id)
            yield NotePair(newer, older, "merge", f"says all that {older.id} says")


def alike(newest_first: Sequence[Memory]) -> Iterator[tuple[Memory, Memory]]:
    """Pairs that no rule decides and that have much in common, the newer first."""
    for newer, older, _ in _near(newest_first):
        if may_replace(newer, older):
            yield newer, older


def may_replace(newer: Memory, older: Memory) -> bool:
    """Whether one note may take another's place. What strangers may speak through never takes the place of what they do
    not, nor a member's word that of an owner's; and what somebody has restored is left alone."""
    decided = older.id in newer.supersedes or newer.id in older.supersedes
    ranks = _RANK.get(newer.trust, 0), _RANK.get(older.trust, 0)
    return newer.untrusted == older.untrusted and ranks[0] >= ranks[1] and not decided


def _near(newest_first: Sequence[Memory]) -> Iterator[tuple[Memory, Memory, bool]]:
    """Pairs with many words in common, and whether the newer has all words of the older, so that nothing is lost with
    that. They are found by their rarest words: not every pair is looked at."""
    terms = {note.id: frozenset(text_terms(note.text).counts) for note in newest_first}
    having: dict[str, list[Memory]] = {}
    for note in newest_first:
        for term in terms[note.id]:
            having.setdefault(term, []).append(note)
    for older in newest_first:
        seen: set[str] = set()
        for term in sorted(terms[older.id], key=lambda term: len(having[term])):
            if len(having[term]) > MAX_CHANGES:
                break  # a word that many have says little
            for newer in having[term]:
                if newer.id == older.id:
                    break  # those behind it are older
                if newer.id not in seen:
                    seen.add(newer.id)
                    if _share(terms[newer.id], terms[older.id]) >= _ALIKE:
                        yield newer, older, terms[newer.id] >= terms[older.id]


def _share(one: frozenset[str], other: frozenset[str]) -> float:
    return len(one & other) / max(1, min(len(one), len(other)))


def _contradicts(newer: str, older: str) -> bool:
    """By rule, where it is plain: the same is said and denied, or the same thing has another name or figure."""
    plain = [set(_WORDS.findall(text.casefold().replace("'", ""))) for text in (newer, older)]
    denied = [bool(words & _NEGATIONS) for words in plain]
    if denied[0] != denied[1]:
        stems = [
            frozenset(text_terms(" ".join(sorted(words - _NEGATIONS - {"do", "does", "did"}))).counts)
            for words in plain
        ]
        return bool(stems[0]) and stems[0] == stems[1]
    found = [_STATEMENT.fullmatch(text.strip()) for text in (newer, older)]
    if found[0] is None or found[1] is None:
        return False
    about = [" ".join(_WORDS.findall(each["about"].casefold())) for each in found if each]
    values = [" ".join(_WORDS.findall(each["value"].casefold())) for each in found if each]
    if about[0] != about[1] or values[0] == values[1]:
        return False
    return bool(_NAMES.search(found[0]["about"])) or _shape(values[0]) == _shape(values[1]) is not None


def _shape(value: str) -> str | None:
    """A value without its figures: "5678" has the shape of "1234", and "at 9" that of "at 10"; None without figures."""
    shape = re.sub(r"\d+", "0", value)
    return shape if shape != value else None


def _figures(text: str) -> list[str]:
    """What must not differ between notes that say the same: figures, and whether something is denied."""
    words = _WORDS.findall(text.casefold())
    return sorted(word for word in words if any(map(str.isdigit, word)) or word in _NEGATIONS)


def _wants_gist(note: Memory) -> bool:
    """Whether a model should say what a note is about: it is long, and its gist is only how it begins."""
    return len(note.text) > LONG and not note.untrusted and note.gist == gist(note.text)


def _merge(connection: Connection, vault: Vault, found: NotePair) -> None:
    scopes = (found.gone.scope_id,)
    try:
        if found.forgets:
            forget_memory(connection, vault, found.gone.id, scopes=scopes, by=BY, reason=found.what)
        else:
            changes.supersede(connection, vault, found.kept, found.gone)
    except (Conflict, NotFound):
        return  # somebody changed one of them meanwhile
    size = len(found.kept.text)
    before = size + len(found.gone.text)
    tell(connection, found.what, found.kept.id, found.why, before=before, after=size)
    crash_point("memory.tidying")


def _keep_gist(connection: Connection, vault: Vault, note: Memory, about: str) -> None:
    line = gist(about)
    if line and changes.set_gist(connection, vault, note, line):
        tell(connection, "gist", note.id, "a model", before=len(note.gist), after=len(line))
