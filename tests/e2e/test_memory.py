"""Memory over real HTTP: people talk, a scripted model answers, and what may be recalled where is read off the requests
that the model gets."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import Connection, func, select, update

from gofer.agent.context import text_size
from gofer.agent.context.operations import REMINDER
from gofer.agent.loop import REMINDER_TOKENS
from gofer.identity import known_principal
from gofer.integration import sign_body
from gofer.memory.manager import MEMORY, NO_BUDGET, ensure_job
from gofer.memory.records import turn_id
from gofer.runs.memories import REMINDERS
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.encryption import conversation_key, unseal
from gofer.store.messages import open_stored, seal_message
from gofer.store.tables import (
    Trust,
    conversations,
    events,
    jobs,
    memories,
    memory_indexes,
    memory_postings,
    messages,
    participants,
    replies,
    secrets,
)
from gofer.vault.envelope import Vault
from gofer_standins import loopback
from gofer_standins.anthropic import Anthropic, Reply, call, calls, say
from support.async_bridge import Elsewhere
from support.patience import Deadline
from support.web_server import House

CANARY = "The vault of the lighthouse opens with marzipan-4471."
ASK = "Which word opens the vault of the lighthouse?"
KEY = "a-signing-key-of-some-length"
_numbers = itertools.count(1)


class Town:
    """A server, a model whose requests can be read, and people in rooms."""

    def __init__(self, house: House, model: Anthropic) -> None:
        self.house, self.model = house, model
        self.script: Callable[[Mapping[str, Any]], Reply] = lambda request: say("Good.")
        owner = house.owner()
        self.people = {"ann": owner, "ben": house.member("ben", "operator", password="")}
        self.apis = {name: house.api(house.token(member)) for name, member in self.people.items()}
        self.rooms: dict[str, tuple[str, str]] = {}
        given = {"reply_url": "http://127.0.0.1:9/"}
        secrets = {"signing_key": KEY}
        wish = {"integration": "hello", "name": "hello", "settings": given, "secrets": secrets}
        made = self.apis["ann"].post("/connections", json=wish)
        assert made.status_code == 201, made.text
        self.connection = made.headers["location"].rpartition("/")[2]

    def ask(self, room: str, who: str, text: str) -> str:
        """Say something and wait until the model was asked; returns the request. Rooms `who-…` are private ones of the
        web chat, the others are groups."""
        before = len(self.model.received)
        if room.startswith(f"{who}-"):
            self._say_in_private(room, who, text)
        else:
            self._say_in_group(room, who, text)
        deadline = Deadline(30)
        while len(self.model.received) == before or self._busy():
            assert deadline.left > 0, "the model was never asked"
            time.sleep(0.05)
        return json.dumps(self.model.received[before:], ensure_ascii=False)

    def command(self, room: str, who: str, text: str) -> str:
        """Say a command in a private room; returns what it is answered with."""
        before = len(self.told(room))
        self._say_in_private(room, who, text)
        deadline = Deadline(20)
        while len(self.told(room)) == before:
            assert deadline.left > 0, f"{text} was not answered"
            time.sleep(0.05)
        return self.told(room)[-1]

    def told(self, room: str) -> list[str]:
        """Every reply in a room."""
        if room not in self.rooms:
            return []
        conversation = self.rooms[room][0]

        def read(connection: Connection) -> list[str]:
            key = conversation_key(connection, self.house.platform.vault, conversation)
            query = select(replies).where(replies.c.conversation_id == conversation).order_by(replies.c.id)
            rows = connection.execute(query).all()
            return [
                str(unseal(key, row.sealed, "reply", row.job_id, row.kind, row.part)["text"]) for row in rows
            ]

        return self.house.read(read)

    def _busy(self) -> bool:
        jobs = self.apis["ann"].get("/jobs", params={"limit": 20}).json()["jobs"]
        return any(job["kind"] == "answer" and job["state"] in ("ready", "running") for job in jobs)

    def _say_in_private(self, room: str, who: str, text: str) -> None:
        path = f"/conversations/{self.rooms[room][0]}/messages" if room in self.rooms else "/messages"
        said = self.apis[who].post(path, json={"text": text})
        assert said.status_code == 202, said.text
        self.rooms[room] = (said.json()["conversation_id"], who)

    def _say_in_group(self, room: str, who: str, text: str) -> None:
        body = json.dumps({"id": f"m{next(_numbers)}", "room": room, "from": who, "text": text}).encode()
        headers = {"x-hello-signature": sign_body(body, KEY, time.time())}
        client = self.house.api()
        sent = client.post(f"{self.house.url}/hooks/{self.connection}", content=body, headers=headers)
        assert sent.status_code == 200, sent.text


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory, elsewhere: Elsewhere) -> Iterator[Town]:
    folder = tmp_path_factory.mktemp("house") / "data"
    folder.mkdir(mode=0o700)
    model = Anthropic(lambda request: made.script(request))
    serving = loopback.serve(model.app)
    url = elsewhere.run(serving.__aenter__())
    house = House(folder, anthropic_key=model.key, anthropic_base_url=url)
    try:
        made = Town(house, model)
        yield made
    finally:
        house.close()
        elsewhere.run(serving.__aexit__(None, None, None))


def test_who_said_it_where_and_who_asks_where(town: Town) -> None:
    """The audience matrix: said in one room, asked for in each."""
    rooms = {"ann-one": "ann", "ann-two": "ann", "ben-one": "ben", "kitchen": "ann", "garden": "ben"}
    known = {
        "ann-one": {"ann-one", "ann-two"},
        "ben-one": {"ben-one"},
        "kitchen": {"kitchen"},
    }
    for room, who in rooms.items():
        town.ask(room, who, "Hello there, nice weather.")
    for source, may_know in known.items():
        secret = f"walnut{next(_numbers)}x"
        town.ask(source, rooms[source], f"The password of the harbour gate is {secret}.")
        for room, who in rooms.items():
            heard = town.ask(room, who, "Tell me the password of the harbour gate.")
            assert (secret in heard) == (room in may_know), (source, room)


def test_a_canary_of_a_private_room_is_nowhere_else(town: Town, capsys: pytest.CaptureFixture[str]) -> None:
    town.ask("ann-canary", "ann", CANARY)
    for room, who in (("ben-canary", "ben"), ("market", "ann"), ("market", "ben")):
        assert "marzipan" not in town.ask(room, who, ASK)
    assert "marzipan" in town.ask("ann-other", "ann", ASK)
    ben = town.apis["ben"]
    rooms = {where for where, *_ in town.rooms.values()}
    pages = ["/memories", "/jobs", "/conversations", *(f"/conversations/{each}/messages" for each in rooms)]
    for page in pages:
        assert "marzipan" not in ben.get(page).text, page
    browser = town.house.browser()
    assert browser.follow(town.house.link(town.people["ben"])).status_code == 303
    shown = [f"/conversations/{each}" for each in rooms]
    runs = [f"/runs/{job['id']}" for job in ben.get("/jobs").json()["jobs"]]
    for page in ["/memory", "/memory?query=marzipan", "/", "/conversations", *shown, *runs]:
        found = browser.get(page)
        assert found.status_code in (200, 303, 404), (page, found.status_code)
        assert "marzipan" not in found.text.replace("query=marzipan", "").replace('value="marzipan"', ""), (
            page
        )
    for path in town.house.settings.data_dir.rglob("*"):
        if path.is_file():
            assert b"marzipan" not in path.read_bytes(), path
    logged = capsys.readouterr()
    assert "job.concluded" in logged.out
    assert "marzipan" not in logged.out + logged.err


def test_what_is_shown_at_a_runs_start_is_bounded(town: Town) -> None:
    for number in range(8):
        text = f"The lantern of pier {number} needs oil. " + f"Its keeper {number} is away in winter. " * 20
        assert town.apis["ann"].post("/memories", json={"scope": "person:me", "text": text}).is_success
    before = len(town.model.received)
    town.ask("ann-lantern", "ann", "Which lantern of the pier needs oil?")
    # The manager asks as well, about the notes.
    asked = next(each for each in town.model.received[before:] if each.get("tools"))["messages"][-1][
        "content"
    ]
    (shown,) = [block["text"] for block in asked if block["type"] == "text" and REMINDER in block["text"]]
    assert 1 <= shown.count("needs oil") <= REMINDERS
    assert text_size(shown) <= REMINDER_TOKENS


def test_an_agent_remembers_searches_and_reads(town: Town) -> None:
    found: list[str] = []

    def script(request: Mapping[str, Any]) -> Reply:
        last = request["messages"][-1]["content"]
        result = next((str(block["content"]) for block in last if block["type"] == "tool_result"), "")
        if not result:
            return calls(call("remember", text="Ann's boat is called Gannet.", audience="person"))
        if "Remembered as" in result:
            return calls(call("recall", query="name of the boat"))
        found.append(result)
        return say("Noted.")

    town.script = script
    town.ask("ann-boat", "ann", "Please note what my boat is called: Gannet.")
    town.script = lambda request: say("Good.")
    assert "Gannet" in found[0]
    assert "score" in found[0]
    assert "Gannet" in town.ask("ann-boat-later", "ann", "What is the name of my boat?")
    assert "Gannet" not in town.ask("ben-boat", "ben", "What is the name of the boat?")


def test_a_search_does_not_find_the_question_and_a_run_counts_once(town: Town) -> None:
    found: list[str] = []

    def script(request: Mapping[str, Any]) -> Reply:
        last = request["messages"][-1]["content"]
        result = next((str(block["content"]) for block in last if block["type"] == "tool_result"), "")
        if len(found) < 2:
            found.extend([result] if result else [])
            return calls(call("recall", query="Which colour has the harbour crane"))
        return say(f"Green, as {re.findall(r'mem_[a-z0-9.]+', found[0])[0]} says.")

    town.ask("ann-crane", "ann", "The harbour crane has a green colour.")
    town.ask("ann-crane", "ann", "And what else?")
    counters = town.house.platform.recall.counters
    before = (counters.shown, counters.used)
    town.script = script
    town.ask("ann-crane", "ann", "Which colour has the harbour crane?")
    town.script = lambda request: say("Good.")
    assert "green colour" in found[0]
    assert "Which colour has the harbour crane?" not in found[0], "the question itself"
    assert (counters.shown - before[0], counters.used - before[1]) == (1, 1)


def test_commands_remember_list_and_forget(town: Town) -> None:
    town.ask("ann-notes", "ann", "Hello.")

    def command(text: str) -> str:
        return town.command("ann-notes", "ann", text)

    kept = command("/remember the spare key lies under the geranium")
    assert "in your private conversations" in kept
    memory_id = kept.split(" as ")[1].split(".")[0]
    assert memory_id in command("/memory")
    assert memory_id in command("/memory geranium")
    assert "everybody I talk to" in command("/remember everybody: we close at six")
    assert "Forgotten" in command(f"/forget {memory_id}")
    assert memory_id not in command("/memory geranium")
    versions = town.apis["ann"].get(f"/memories/{memory_id}").json()["versions"]
    assert [each["author"] for each in versions] == ["owner", "owner"], "whose word it was"
    assert "no memory with this id" in command("/forget mem_abcdefghjkmnpqrs")
    assert "Say what" in command("/remember")
    assert "Restored" in command(f"/memory restore {memory_id}")
    assert "is remembered" in command(f"/memory restore {memory_id}")
    assert "Changed" in command(f"/memory edit {memory_id} the spare key lies under the mat")
    shown = command(f"/memory {memory_id}")
    for words in (
        "-the spare key lies under the geranium",
        "+the spare key lies under the mat",
        "message 3 of this conversation",
    ):
        assert words in shown, shown
    assert "belongs to a conversation" in command(f"/memory pin {memory_id}")
    moved = command(f"/memory audience `{memory_id}` conversation").split(" as ")[1].strip(".")
    assert memory_id not in command("/memory mat")
    rules = f"/conversations/{town.rooms['ann-notes'][0]}/rules"
    assert "Pinned" in command(f"/memory pin {moved}")
    assert [each["id"] for each in town.apis["ann"].get(rules).json()["rules"]] == [moved]
    assert "no standing rule" in command(f"/memory unpin {moved}")
    assert town.apis["ann"].get(rules).json()["rules"] == []
    assert "Say who may hear" in command(f"/memory audience {moved} the world")
    assert "everybody I talk to" in command(f"/memory audience {moved} everybody")
    exported = [json.loads(line) for line in command("/memory export").splitlines() if line.startswith("{")]
    assert "the spare key lies under the mat" in [each["text"] for each in exported]
    assert "Nothing that may be recalled" in command("/memory restore zebras"), "words to search for"
    assert "/memory pin and an id" in command("/memory pin")
    assert "Imported 2 notes, for you" in command(
        "/memory import\n- the ferry leaves at nine\n- the dog is Rex"
    )
    assert "the dog is Rex" in command("/memory Rex")
    assert "in the same message" in command("/memory import")
    assert "indexed anew" in command("/memory reindex")
    assert "the dog is Rex" in command("/memory Rex")


def test_in_a_chat_a_member_changes_what_is_theirs_and_widens_nothing(town: Town) -> None:
    shared = (
        town.apis["ann"]
        .post("/memories", json={"scope": "agent:gofer", "text": "Lunch is at one."})
        .json()["id"]
    )
    secret = town.apis["ann"].post("/memories", json={"scope": "person:me", "text": "Ann hums."}).json()["id"]

    def command(text: str) -> str:
        return town.command("ben-orders", "ben", text)

    own = command("/remember my bike is red").split(" as ")[1].split(".")[0]
    assert "Changed" in command(f"/memory edit {own} my bike is blue")
    assert "Only an owner" in command(f"/memory audience {own} everybody")
    assert "Lunch is at one." in command(f"/memory {shared}")
    for verb in ("edit", "pin", "unpin", "restore"):
        assert "Only an owner" in command(f"/memory {verb} {shared} x"), verb
    for verb in ("show", "edit", "pin", "restore", "audience"):
        told = command(f"/memory {verb} {secret} everybody")
        assert "no memory with this id" in told or "Only an owner" in told, told
        assert "hums" not in told
    theirs = json.dumps({"text": "Ann whistles.", "scope": "person:somebody_else"})
    assert "for other people" in command(f"/memory import\n{theirs}")
    assert "Only an owner" in command("/memory reindex")


def test_a_damaged_rule_is_said_and_the_agent_answers(town: Town) -> None:
    town.ask("ann-oath", "ann", "Always greet the harbour master.")
    town.ask("ann-oath", "ann", "Never feed the gulls.")
    scope = f"conversation:{town.rooms['ann-oath'][0]}"
    rules = f"/conversations/{town.rooms['ann-oath'][0]}/rules"
    damage = update(memories).where(memories.c.scope_id == scope, memories.c.message_seq == 1)
    town.house.write(lambda c: c.execute(damage.values(sealed=b"\x02nonsense")))
    before = len(town.told("ann-oath"))
    town.ask("ann-oath", "ann", "Always lock the shed.")
    assert len(town.told("ann-oath")) == before + 1
    assert scope in town.apis["ann"].get("/doctor").text
    assert len(town.apis["ann"].get(rules).json()["rules"]) == 3
    damaged = next(each for each in town.apis["ann"].get(rules).json()["rules"] if not each["text"])
    assert town.apis["ann"].post(f"{rules}/{damaged['id']}/revoke").status_code == 200
    assert scope not in town.apis["ann"].get("/doctor").text


def test_a_note_for_everybody_may_be_the_first_word_of_a_conversation(town: Town) -> None:
    town.command("ann-first", "ann", "/remember everybody: the ferry leaves at noon")
    found = town.apis["ann"].get("/memories", params={"scope": "agent:gofer", "query": "ferry"})
    assert len(found.json()["memories"]) == 1


def test_where_there_are_two_agents_commands_mean_those_that_hear_the_conversation(town: Town) -> None:
    api = town.apis["ann"]
    assert api.put("/agents/scribe", json={"toml": "", "instructions": "Write."}).status_code == 200
    try:
        told = town.command("ann-two-agents", "ann", "/remember everybody: the bakery opens at five")
        assert "everybody I talk to" in told, "gofer alone hears it"
        assert "bakery" in town.command("ann-two-agents-later", "ann", "/memory"), "where nobody has answered"
        assert "scribe hears" in town.command("ann-two-agents", "ann", "/agent scribe")
        told = town.command("ann-two-agents", "ann", "/remember everybody: the quay is closed")
        assert "Remembered" in told
        noted = api.get("/memories", params={"scope": "agent:scribe"}).json()["memories"]
        assert [each["text"] for each in noted] == ["the quay is closed"]
        assert "quay" not in town.command("ann-two-agents-later", "ann", "/memory"), "scribe is not here"
    finally:
        assert api.delete("/agents/scribe").status_code == 200


def test_a_rule_of_before_a_fresh_start_is_not_said_to_be_in_force(town: Town) -> None:
    town.ask("ann-rules", "ann", "Always answer in rhymes.")
    place = f"/conversations/{town.rooms['ann-rules'][0]}"

    def ended() -> list[bool]:
        return [rule["ended"] for rule in town.apis["ann"].get(f"{place}/rules").json()["rules"]]

    assert ended() == [False]
    town.command("ann-rules", "ann", "/new")
    assert ended() == [True]
    browser = town.house.browser()
    browser.follow(town.house.link(town.people["ann"]))
    assert "ended by /new" in browser.get(place).text
    town.ask("ann-rules", "ann", "As I said: Always answer in rhymes.")
    assert False in ended(), "said again, it counts again"


def test_with_a_damaged_index_the_agent_answers_and_everybody_is_told(town: Town) -> None:
    api, question = town.apis["ann"], "How many cranes has the harbour of Lund?"
    town.ask("ann-broken", "ann", "The harbour of Lund has eleven cranes.")
    scope = f"conversation:{town.rooms['ann-broken'][0]}"
    found = {"scope": scope, "query": "cranes"}
    assert "eleven" in api.get("/memories", params=found).text
    browser = town.house.browser()
    browser.follow(town.house.link(town.people["ann"]))
    assert "gofer_memory_degraded 0.0" in browser.get("/metrics").text

    def damage(connection: Connection) -> None:
        here = select(memory_indexes.c.id).where(memory_indexes.c.scope_id == scope).scalar_subquery()
        rows = update(memory_postings).where(memory_postings.c.index_id == here)
        connection.execute(rows.values(sealed=b"\x02nonsense"))

    town.house.write(damage)
    before = len(town.told("ann-broken"))
    assert question in town.ask("ann-broken", "ann", question)
    assert len(town.told("ann-broken")) == before + 1, "it answers from its context"
    ran = api.get("/jobs", params={"limit": 20}).json()["jobs"]
    job = max(each["id"] for each in ran if each["kind"] == "answer")
    marked = select(events.c.data).where(events.c.kind == "memory.degraded")
    data = town.house.read(lambda connection: connection.execute(marked).scalars().all())[-1]
    assert (data["job_id"], data["scopes"]) == (job, [scope])
    assert f"gofer memory reindex --scope {scope}" in browser.get("/memory").text
    recalled = api.get(f"/conversations/{town.rooms['ann-broken'][0]}/memories", params={"query": "cranes"})
    assert f"gofer memory reindex --scope {scope}" in str(recalled.json()["problems"])
    assert scope in api.get("/doctor").text
    assert "gofer_memory_degraded 1.0" in browser.get("/metrics").text
    assert api.post("/memories/reindex", json={"scope": scope}).json() == {"scopes": 1, "degraded": []}
    assert "eleven" in api.get("/memories", params=found).text
    metrics = browser.get("/metrics").text
    assert "gofer_memory_degraded 0.0" in metrics
    for name in ("searches", "search_seconds"):
        assert float(re.findall(rf"^gofer_memory_{name} (.+)$", metrics, re.M)[0]) > 0, name
    recall = town.house.platform.recall.counters
    assert f"gofer_memory_runs_shown {float(recall.shown)}" in metrics
    assert f"gofer_memory_runs_used {float(recall.used)}" in metrics
    assert float(re.findall(r'^gofer_memories\{kind="turn"\} (.+)$', metrics, re.M)[0]) > 0


def test_people_are_principals(town: Town) -> None:
    found = town.house.read(lambda c: known_principal(c, FIRST_WORKSPACE, "webchat", town.people["ben"]))
    assert found is not None


def test_a_lost_key_marks_every_run_also_after_reindexing_and_hides_nothing(town: Town) -> None:
    api, ben = town.apis["ann"], town.apis["ben"]
    made = ben.post(
        "/memories", json={"scope": "person:me", "text": "Ben's locker has the number 417."}
    ).json()
    browser = town.house.browser()
    browser.follow(town.house.link(town.people["ann"]))
    scope = made["scope"]
    named = secrets.c.name == f"memory.{scope}"
    kept = town.house.read(lambda c: c.execute(select(secrets).where(named)).one())
    town.house.write(lambda c: c.execute(secrets.delete().where(named)))
    try:
        assert api.post("/memories/reindex", json={}).status_code == 202
        town.ask("ben-locker", "ben", "Which number has my locker?")
        assert marks(town)[-1]["scopes"] == [scope]
        refused = api.post("/memories/reindex", json={"scope": scope})
        assert (refused.status_code, "gofer restore" in refused.text) == (503, True), refused.text
        before = len(marks(town))
        town.ask("ben-locker", "ben", "And now, which number has my locker?")
        assert len(marks(town)) > before
        for page in ("/memory", "/"):
            assert scope in browser.get(page).text, page
        assert scope in api.get("/doctor").text
        assert "gofer_memory_degraded 1.0" in browser.get("/metrics").text
    finally:
        town.house.write(lambda c: c.execute(secrets.insert().values(**kept._mapping)))
    town.ask("ben-locker", "ben", "And once more, which number has my locker?")
    api.get("/doctor")
    assert "gofer_memory_degraded 0.0" in browser.get("/metrics").text


def marks(town: Town) -> list[Any]:
    marked = select(events.c.data).where(events.c.kind == "memory.degraded").order_by(events.c.id)
    return list(town.house.read(lambda connection: connection.execute(marked).scalars().all()))


def test_a_damaged_note_marks_runs_until_it_is_forgotten(town: Town) -> None:
    api, question = town.apis["ann"], "When does the ferry to Ystad leave?"
    note = api.post(
        "/memories", json={"scope": "agent:gofer", "text": "The ferry to Ystad leaves at 7."}
    ).json()
    assert "leaves at 7" in town.ask("ann-ystad", "ann", question)
    damage = update(memories).where(memories.c.id == note["id"]).values(sealed=b"\x02nonsense")
    town.house.write(lambda connection: connection.execute(damage))
    for _ in range(2):  # as it is indexed, and after it was indexed anew
        before = len(marks(town))
        assert (
            "leaves at 7" not in town.ask("ann-ystad", "ann", f"{question} Say it again.").split(question)[-1]
        )
        assert note["scope"] in marks(town)[before]["scopes"]
        assert "gofer memory forget" in api.get("/doctor").text
        api.post("/memories/reindex", json={})
    assert api.post(f"/memories/{note['id']}/forget").status_code == 200
    assert note["scope"] not in api.get("/doctor").text
    before = len(marks(town))
    town.ask("ann-ystad", "ann", question)
    assert len(marks(town)) == before


def test_a_damaged_message_stops_no_run_and_no_page_and_can_be_forgotten(town: Town) -> None:
    api = town.apis["ann"]
    browser = town.house.browser()
    browser.follow(town.house.link(town.people["ann"]))
    town.ask("ann-pier", "ann", "The pier of Rostock is 300 m long.")
    conversation = town.rooms["ann-pier"][0]
    here, turn = f"conversation:{conversation}", turn_id(conversation, 1)
    first = (messages.c.conversation_id == conversation) & (messages.c.seq == 1)
    damage = update(messages).where(first).values(sealed=b"\x02nonsense")
    town.house.write(lambda connection: connection.execute(damage))
    answers, marked = len(town.told("ann-pier")), len(marks(town))
    request = town.ask("ann-pier", "ann", "Its planks are of oak.")
    assert (len(town.told("ann-pier")), "300 m" in request) == (answers + 1, False)
    assert here in marks(town)[marked]["scopes"]
    assert "planks are of oak" in town.ask("ann-planks", "ann", "Of what are the planks of Rostock?")
    for told in (api.get("/doctor").text, browser.get("/").text):
        assert (turn in told, "gofer memory forget" in told) == (True, True)
    assert turn in str(api.get("/memories", params={"scope": here}).json()["problems"])
    for page in (f"/conversations/{conversation}", f"/chat/{conversation}"):
        shown = browser.get(page)
        assert (shown.status_code, "changed or damaged" in shown.text) == (200, True), page
    said = api.get(f"/conversations/{conversation}/messages").json()["messages"]
    assert "changed or damaged" in next(each["text"] for each in said if each["seq"] == 1)
    assert api.get(f"/memories/{turn}").json()["state"] == "unreadable"
    assert "(unreadable)" in browser.get(f"/memory/{turn}").text
    assert "gofer restore FILE" in town.command("ann-pier", "ann", f"/memory {turn}")
    assert "Forgotten" in town.command("ann-pier", "ann", f"/forget {turn}")
    assert api.get(f"/memories/{turn}").json()["state"] == "forgotten"
    assert "gofer restore FILE" in town.command("ann-pier", "ann", f"/memory restore {turn}")
    marked = len(marks(town))
    town.ask("ann-pier", "ann", "Thank you.")
    assert (len(marks(town)), turn in api.get("/doctor").text) == (marked, False)


def test_a_damaged_summary_stops_no_run(town: Town) -> None:
    town.ask("ann-sums", "ann", "The ferry to Sassnitz has four decks.")
    here = participants.c.conversation_id == town.rooms["ann-sums"][0]
    damage = update(participants).where(here).values(summary=b"\x02nonsense")
    town.house.write(lambda connection: connection.execute(damage))
    before = len(town.told("ann-sums"))
    assert "four decks" in town.ask("ann-sums", "ann", "How many?")
    assert len(town.told("ann-sums")) == before + 1


def test_when_rules_tidy_for_want_of_money_doctor_and_the_overview_say_so(town: Town) -> None:
    browser = town.house.browser()
    browser.follow(town.house.link(town.people["ann"]))
    assert "memory_day_dollars" not in browser.get("/").text
    town.house.write(lambda connection: ensure_job(connection, "memory:later", {}, delay=3600))
    its = jobs.c.id == select(func.max(jobs.c.id)).where(jobs.c.kind == MEMORY).scalar_subquery()
    town.house.write(lambda connection: connection.execute(update(jobs).where(its).values(reason=NO_BUDGET)))
    assert "memory_day_dollars" in browser.get("/").text
    assert "memory_day_dollars" in town.apis["ann"].get("/doctor").text
    town.house.write(lambda connection: connection.execute(update(jobs).where(its).values(reason="")))


def test_without_its_tables_memory_is_said_to_be_away_and_the_agent_answers(town: Town) -> None:
    api = town.apis["ann"]
    browser = town.house.browser()
    browser.follow(town.house.link(town.people["ann"]))
    town.ask("ann-away", "ann", "The harbour of Ystad has nine cranes.")
    town.house.write(lambda c: c.exec_driver_sql("ALTER TABLE memory_posting RENAME TO away"))
    try:
        before = len(town.told("ann-away")), len(marks(town))
        town.ask("ann-away", "ann", "How many cranes has the harbour of Ystad?")
        assert len(town.told("ann-away")) == before[0] + 1
        assert len(marks(town)) > before[1]
        assert "Nothing can be recalled" in browser.get("/").text
        assert "memory" in [
            each["check"] for each in api.get("/doctor").json()["findings"] if each["severity"] != "ok"
        ]
        searched = browser.get("/memory?query=cranes")
        assert (searched.status_code, "gofer doctor" in searched.text) == (200, True)
    finally:
        town.house.write(lambda c: c.exec_driver_sql("ALTER TABLE away RENAME TO memory_posting"))
    api.get("/doctor")
    assert "Nothing can be recalled" not in browser.get("/").text


def test_a_model_recalls_a_fact_from_2000_messages_and_two_restarts_ago(
    tmp_path: Path, elsewhere: Elsewhere
) -> None:
    question, results = "What was the alarm code of the boathouse again?", list[str]()

    def script(request: Mapping[str, Any]) -> Reply:
        last = request["messages"][-1]["content"]
        results.extend(str(block["content"]) for block in last if block["type"] == "tool_result")
        if question in str(last):
            assert "7315" not in str(request), "it is not in the prompt, and nothing is shown unasked"
            return calls(call("recall", query="alarm code boathouse"))
        return say("Good.")

    folder, model, room = tmp_path / "data", Anthropic(script), ""
    folder.mkdir(mode=0o700)
    serving = loopback.serve(model.app)
    url = elsewhere.run(serving.__aenter__())
    try:
        for text in ("The alarm code of the boathouse is 7315.", "Nothing new.", question):
            house = House(folder, anthropic_key=model.key, anthropic_base_url=url, automatic_recall=False)
            try:
                api = house.api(house.token(house.owner()))
                said = api.post(
                    f"/conversations/{room}/messages" if room else "/messages", json={"text": text}
                )
                job = said.json()["job_id"]
                deadline = Deadline(60)
                while api.get(f"/jobs/{job}").json()["job"]["state"] != "done":
                    assert deadline.left > 0, "it was not answered"
                    time.sleep(0.05)
                if not room:
                    room = said.json()["conversation_id"]
                    house.write(pad, vault=house.platform.vault, conversation=room, count=2000)
            finally:
                house.close()
    finally:
        elsewhere.run(serving.__aexit__(None, None, None))
    assert "7315" in results[0]


def pad(connection: Connection, vault: Vault, conversation: str, count: int) -> None:
    """So many more messages of small talk, which are read."""
    here = messages.c.conversation_id == conversation
    row = connection.execute(select(messages).where(here, messages.c.connection_id.is_not(None))).first()
    assert row is not None
    key = conversation_key(connection, vault, conversation)
    first, last = (
        open_stored(key, row).message,
        connection.execute(select(func.max(messages.c.seq)).where(here)).scalar_one(),
    )
    rows = []
    for seq in range(last + 1, last + count + 1):
        said = replace(first, text=f"small talk {seq} about bread, rain and the alarm clock")
        sealed = seal_message(key, conversation, seq, said, Trust.MEMBER, came_by=row.connection_id)
        rows.append({**row._mapping, "seq": seq, "sealed": sealed, "external_id": f"pad-{seq}"})
    connection.execute(messages.insert(), rows)
    one = conversations.c.id == conversation
    connection.execute(update(conversations).where(one).values(last_seq=last + count))
    read = participants.c.conversation_id == conversation
    connection.execute(update(participants).where(read).values(read_seq=last + count))
