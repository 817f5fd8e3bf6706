"""LOAD, UPDATE, EVICT, SUMMARIZE and purge in any order, against an oracle that simply remembers everything.

Whatever happens: every id that was ever shown resolves to the bytes that were stored, a call is followed by its result,
and the bytes before the end of the prompt change at most once for each batch.
"""

from __future__ import annotations

import asyncio
from functools import partial
from pathlib import Path
from typing import Any

import hypothesis.strategies as st
import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    precondition,
    rule,
    run_state_machine_as_test,
)
from sqlalchemy import func, select

from gofer.agent.context import ConversationProvider
from gofer.agent.context.compressor import ContextSettings, PlainCompressor
from gofer.agent.context.operations import evict, load
from gofer.agent.conversation import Recollection
from gofer.agent.interfaces import Point
from gofer.agent.state import Call, Recorder
from gofer.agent.transcript import merge, transcript
from gofer.errors import NotFound
from gofer.jobs.queue import Claim
from gofer.memory import changes, records
from gofer.memory.scopes import conversation_scope
from gofer.purge import purge_conversation
from gofer.runs.memories import StoreMemories
from gofer.runs.store_adapters import StoreHistory, StoreJournal
from gofer.settings import Settings
from gofer.store.sqlite import SqliteDatabase
from gofer.store.tables import memories
from gofer.vault.envelope import Vault
from gofer.vault.keyring import open_ring
from gofer_standins.anthropic_rules import problems
from support.sqlite_template import with_tables
from support.world import World

TEXTS = st.text(alphabet=st.sampled_from('ab[]<>#"\n\x00é漢/mem_'), min_size=0, max_size=400)
USAGE = {"input": 1, "output": 1}


class MemoryMachine(RuleBasedStateMachine):
    """One conversation and one run in it; the run is resumed now and then, as after a restart."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        folder.mkdir(mode=0o700)
        settings_ = with_tables(Settings(data_dir=folder))
        assert settings_.sqlite_path is not None
        self.database = SqliteDatabase(settings_.sqlite_path)
        self.vault = Vault(open_ring(folder, ciphertext_exists=False))
        self.known: dict[str, dict[int, str]] = {}
        """What each id must give: its text by version."""
        self.calls = 0
        self.purged = False
        self.last: list[str] = []
        """The prompt as it was, piece by piece."""
        self.batches = 0
        self.changes = 0

    def do(self, work: Any) -> Any:
        return self.loop.run_until_complete(work)

    @initialize()
    def begin(self) -> None:
        self.do(self.database.start())
        self.world = self.do(World.made(self.database, self.vault))
        self.do(self.world.say("the first words"))
        self.claim: Claim = self.do(self.world.claim_one())
        self.conversation = str(self.claim.conversation_id)
        self.scope = conversation_scope(self.conversation)
        self.known[records.turn_id(self.conversation, 1)] = {1: "the first words"}
        self.resume()
        started = {"trust": "owner", "history_after": 0, "history_to": 0}
        self.record("run.started", started)

    def resume(self) -> None:
        """A worker takes over: everything it knows is the journal."""
        self.memories = StoreMemories(self.database, self.vault, self.claim)
        self.recorder = Recorder(StoreJournal(self.database, self.vault, self.claim), lambda kind, data: None)
        self.do(self.recorder.load())
        history = StoreHistory(self.database, self.vault, self.claim)
        self.provider = ConversationProvider(history, self.memories)
        sizes = ContextSettings(keep=200, keep_rounds=1)
        self.compressor = PlainCompressor(sizes, lambda: 100_000, None, self.memories)

    @property
    def state(self) -> Any:
        return self.recorder.state

    def record(self, kind: str, data: dict[str, Any]) -> None:
        self.do(self.recorder(kind, data))

    def batch(self, points: list[Point]) -> None:
        for point in points:
            self.batches += 1
            self.record(point.kind, point.data)

    @precondition(lambda self: not self.purged)
    @rule(text=TEXTS, recalled=st.booleans(), data=st.data())
    def a_turn(self, text: str, recalled: bool, data: Any) -> None:
        """The model calls a tool and gets a result; or it recalls something, which is LOAD."""
        self.calls += 1
        call_id, name = f"call_{self.calls}", "recall" if recalled else "tool"
        self.record(
            "turn.started",
            {"input": [{"type": "text", "text": f"go {self.calls}"}], "included_to": 1, "reserved": 0, "size": 1,
             "notes": [], "narrowed": False, "wrap_up": None, "turn": self.calls},
        )  # fmt: skip
        block = {"type": "tool_use", "id": call_id, "name": name, "input": {"n": self.calls}}
        self.record(
            "turn.finished",
            {"content": [block], "malformed": {}, "usage": USAGE, "cost": 0, "message_id": None,
             "model": "m", "stop": "tool_use", "cut_call": False},
        )  # fmt: skip
        self.record("tool.started", {"call_id": call_id, "name": name, "tier": "read"})
        pieces: list[Any] = []
        if recalled:
            wanted = data.draw(st.sampled_from(sorted(self.known)))
            result = load(self.do(self.memories.get(wanted)), "owner", length=10_000)
            text, pieces = result.content, list(result.pieces)
        self.record(
            "tool.finished",
            {"call_id": call_id, "name": name, "status": "ok", "content": text, "images": [], "details": {},
             "is_error": False, "exit_code": None, "timed_out": False, "truncated": False, "more": "",
             "pieces": pieces, "untrusted": False, "progress": False, "polling": False, "asked": False,
             "call_sig": call_id, "result_sig": call_id, "took_ms": 0},
        )  # fmt: skip

    def answered(self) -> list[Call]:
        rounds = self.state.rounds[self.state.kept_from :]
        return [call for round_ in rounds[:-1] for call in round_.calls if call.id not in self.state.cleared]

    @precondition(lambda self: not self.purged and self.answered())
    @rule(data=st.data())
    def evict_some(self, data: Any) -> None:
        """EVICT any of what is not being worked on."""
        some = data.draw(
            st.lists(st.sampled_from(self.answered()), min_size=1, unique_by=lambda call: call.id)
        )
        point = evict(some, self.memories)
        self.batch([point])
        self.learn(point)

    @precondition(lambda self: not self.purged and len(self.state.rounds) - self.state.kept_from > 2)
    @rule()
    def summarize(self) -> None:
        """SUMMARIZE what is old."""
        before = self.do(self.provider.summary(self.state))
        history = self.do(self.provider.history(self.state))
        points = self.do(self.compressor.shrink(self.state, before, history, 1, force=True))
        self.batch(points)
        for point in points:
            self.learn(point)
            self.known[point.data["id"]] = {1: point.data["summary"] or "(empty)"}

    def learn(self, point: Point) -> None:
        """What the oracle knows of what was evicted."""
        calls = {call.id: call for round_ in self.state.rounds for call in round_.calls}
        for each in point.data["evicted"]:
            call = calls[each["call_id"]]
            assert call.result is not None
            if not call.result["pieces"]:
                self.known[each["id"]] = {1: call.result["content"] or "(no output)"}

    @precondition(lambda self: not self.purged and any(len(each) == 20 for each in self.known))
    @rule(text=TEXTS.filter(str.strip), data=st.data())
    def update(self, text: str, data: Any) -> None:
        """UPDATE a summary or a note; results and messages are what they were."""
        memory_id = data.draw(st.sampled_from(sorted(each for each in self.known if "." not in each)))
        version = max(self.known[memory_id])
        verb = partial(
            changes.change,
            vault=self.vault,
            memory_id=memory_id,
            scopes=(self.scope,),
            text=text,
            trust="owner",
        )
        kind = self.do(self.memories.get(memory_id)).kind
        if kind == "result":
            with pytest.raises(Exception, match="cannot be changed"):
                self.do(self.database.write(verb))
            return
        assert self.do(self.database.write(verb)).version == version + 1
        self.known[memory_id][version + 1] = text

    @precondition(lambda self: not self.purged)
    @rule(text=TEXTS.filter(str.strip))
    def note(self, text: str) -> None:
        new = records.NewMemory("note", self.scope, text, "owner")
        made = self.do(self.database.write(partial(changes.remember, vault=self.vault, new=new)))
        self.known[made.id] = {1: text}

    @rule()
    def restart(self) -> None:
        if self.purged:
            return
        before = self.prompt()
        self.resume()
        assert self.prompt() == before, "a worker that takes over says exactly what the first one said"

    @precondition(lambda self: not self.purged and self.calls > 8)
    @rule()
    def purge(self) -> None:
        verb = partial(purge_conversation, vault=self.vault, conversation_id=self.conversation, by="test")
        self.do(self.database.write(verb))
        self.purged = True

    def prompt(self) -> list[str]:
        opening = self.do(self.provider.opening(self.state))
        messages = merge([*opening, *transcript(self.state)])
        return [f"{message['role']}: {block}" for message in messages for block in message["content"]]

    @invariant()
    def every_id_gives_what_was_stored(self) -> None:
        for memory_id, texts in self.known.items():
            if self.purged:
                with pytest.raises(NotFound, match="purged"):
                    self.do(self.memories.get(memory_id))
                continue
            for version, text in texts.items():
                verb = partial(
                    records.resolve,
                    vault=self.vault,
                    memory_id=memory_id,
                    scopes=(self.scope,),
                    version=version,
                )
                assert self.do(self.database.read(verb)).text == text
            found: Recollection = self.do(self.memories.get(memory_id))
            assert found.version == max(texts)

    @invariant()
    def the_request_is_valid_and_only_grows(self) -> None:
        if self.purged or not self.calls:
            return
        opening = self.do(self.provider.opening(self.state))
        messages = [
            {key: value for key, value in each.items() if key != "by"}
            for each in merge([*opening, *transcript(self.state)])
        ]
        request = {
            "model": "m", "max_tokens": 5, "system": [{"type": "text", "text": "s"}], "messages": messages,
            "tools": [{"name": name, "description": "d", "input_schema": {"type": "object"}}
                      for name in ("tool", "recall")],
        }  # fmt: skip
        assert [each for each in problems(request, {}) if "empty" not in each] == []
        now = self.prompt()
        self.changes += now[: len(self.last)] != self.last
        self.last = now
        assert self.changes <= self.batches

    @invariant()
    def nothing_is_kept_twice(self) -> None:
        if self.calls:
            same = select(func.count()).where(memories.c.kind == "result").group_by(memories.c.call_id)
            if not self.purged:
                assert set(self.do(self.world.rows(same))) <= {(1,)}

    def teardown(self) -> None:
        self.do(self.database.close())
        self.loop.close()


@pytest.mark.parametrize("runs", [4, pytest.param(12, marks=pytest.mark.slow)])
def test_memory_keeps_its_promises_whatever_happens(
    tmp_path_factory: pytest.TempPathFactory, runs: int
) -> None:
    run_state_machine_as_test(
        lambda: MemoryMachine(tmp_path_factory.mktemp("machine") / "data"),  # type: ignore[arg-type]
        settings=settings(
            max_examples=runs,
            stateful_step_count=25,
            deadline=None,
            suppress_health_check=list(HealthCheck),
            phases=(
                Phase.reuse,
                Phase.generate,
            ),  # each step is several commits: making it smaller takes minutes
        ),
    )
