"""The dashboard's pages over a store with a long past, beside the same pages over an empty one.

What is timed is the app itself, from the request to the last byte, as the owner who is signed in sees it.
"""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import AsyncIterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import httpx2
from sqlalchemy import Connection, insert, text, update

from benchmarks import postgres
from benchmarks.report import Row
from gofer.app import Platform, open_app
from gofer.integration import Author, Incoming
from gofer.secrets.rotation import new_conversation_key
from gofer.settings import load_settings
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.db_time import now
from gofer.store.encryption import conversation_key, seal
from gofer.store.messages import seal_message
from gofer.store.tables import conversations, events, jobs, messages
from gofer.vault.envelope import Vault
from gofer.web.app import public_app
from gofer.web.auth.members import first_owner
from gofer.web.auth.sessions import begin_session

GROUP = "pages"
LIMIT = 100.0
"""Milliseconds that a page may take."""
BUSY = "conv_busy"
LONG_RUN = 1
"""The run that has thousands of events with words, in the conversation that has a thousand messages."""

PATHS = (
    "/", "/runs", "/runs?state=dead", "/runs?state=cancelled&kind=all", "/runs?kind=all&before=50000",
    "/runs?state=running", "/runs?state=waiting&kind=all", "/runs?agent=nobody", "/runs?connection=other",
    "/runs/new?after=99990", "/runs/1", "/runs/1/events", "/runs/77777", "/conversations",
    "/conversations?connection=other", f"/conversations/{BUSY}", "/inbox", "/inbox?connection=other",
    "/inbox/500", "/shells", "/schedules", "/connections", "/connections/main", "/agents", "/secrets",
    "/members", "/costs?days=90", "/audit", "/audit?name=nobody", "/logs", "/doctor", "/settings",
)  # fmt: skip


@dataclass(frozen=True)
class Sql:
    """How a database says what is not said alike."""

    name: str
    now: str
    day: str
    """One of the last ninety, by i."""
    blob: str
    """1,500 bytes."""
    zeros: str
    as_json: str

    def json(self, size: int) -> str:
        """An object with so many bytes' worth of digits, and what an attempt's end says."""
        value = (
            """'{"outcome": "done", "reason": "", "more": "' || """ + self.zeros.format(size) + """ || '"}'"""
        )
        return self.as_json.format(value)


SQLITE = Sql(
    "SQLite",
    "strftime('%s','now')",
    "date('now', '-' || (i % 90) || ' days')",
    "zeroblob(1500)",
    "hex(zeroblob({}))",
    "{}",
)
POSTGRES = Sql(
    "Postgres",
    "extract(epoch from now())",
    "to_char(now() - (i % 90) * interval '1 day', 'YYYY-MM-DD')",
    "decode(repeat('00', 1500), 'hex')",
    "repeat('00', {})",
    "CAST({} AS json)",
)


async def main(quick: bool) -> list[Row]:
    """Time every page on both databases."""
    size, rounds = (0.1, 5) if quick else (1.0, 15)
    rows = await _on(SQLITE, "", "", size, rounds)
    async with postgres.server() as server:
        return rows + await _on(POSTGRES, await server.fresh(), await server.fresh(), size, rounds)


async def _on(sql: Sql, empty_url: str, full_url: str, size: float, rounds: int) -> list[Row]:
    async with _instance(empty_url) as empty, _instance(full_url) as full:
        await empty.database.write(partial(_furnish, vault=empty.vault))
        began = time.perf_counter()
        await full.database.write(partial(_furnish, vault=full.vault))
        await full.database.write(partial(_fill, sql=sql, size=size))
        # What either database does by itself after a while.
        await full.database.write(lambda connection: connection.exec_driver_sql("ANALYZE"))
        print(f"  filled {sql.name} in {time.perf_counter() - began:.0f} s", flush=True)
        rows = await _times(sql, empty, full, rounds)
    slowest = max(rows, key=lambda row: row.value)
    name = f"the slowest page, {sql.name}"
    return [*rows, Row(GROUP, name, slowest.value, "ms", at_most=LIMIT, note=slowest.name)]


async def _times(sql: Sql, empty: Platform, full: Platform, rounds: int) -> list[Row]:
    rows = []
    async with _visitor(empty) as new, _visitor(full) as old:
        for path in PATHS:
            floor, value = await _best(new, path, rounds), await _best(old, path, rounds)
            rows.append(Row(GROUP, f"{path}, {sql.name}", value, "ms", "an empty store", floor))
    return rows


async def _best(client: httpx2.AsyncClient, path: str, rounds: int) -> float:
    """The quickest of several: what the page takes when nothing else is in its way."""
    taken = []
    for number in range(rounds + 1):
        began = time.perf_counter()
        answer = await client.get(path)
        assert answer.status_code in (200, 404), f"{path}: {answer.status_code} {answer.text[:300]}"
        if number:  # the first compiles the template
            taken.append((time.perf_counter() - began) * 1000)
    return min(taken)


@contextlib.asynccontextmanager
async def _instance(url: str) -> AsyncIterator[Platform]:
    with tempfile.TemporaryDirectory(prefix="gofer-bench-") as folder:
        settings = load_settings(data_dir=Path(folder), database_url=url)
        async with open_app(settings, roles=frozenset()) as platform:
            yield platform


@contextlib.asynccontextmanager
async def _visitor(platform: Platform) -> AsyncIterator[httpx2.AsyncClient]:
    """The owner's browser, without the network between."""

    def sign_in(connection: Connection) -> str:
        owner = first_owner(connection)
        return begin_session(connection, owner.id, by="link", address="127.0.0.1", agent="benchmark")

    cookie = await platform.database.write(sign_in)
    transport = httpx2.ASGITransport(public_app(platform))
    async with httpx2.AsyncClient(
        transport=transport, base_url="http://127.0.0.1", cookies={"gofer_session": cookie}, timeout=60
    ) as client:
        yield client


def _furnish(connection: Connection, vault: Vault) -> None:
    """What pages of single things need: a connection, a conversation, a delivery, a run."""
    for name in ("main", "other"):
        connection.exec_driver_sql(
            "INSERT INTO connection (id, workspace_id, integration, name, enabled, settings, created_at)"
            f" VALUES ('{name}', 'main', 'hello', '{name}', false, '{{}}', 1)"
        )
    connection.execute(
        insert(conversations).values(
            id=BUSY, workspace_id=FIRST_WORKSPACE, kind="chat", title="busy", last_seq=0, created_at=now(),
            data_key=new_conversation_key(connection, vault, BUSY),
        )
    )  # fmt: skip
    key = conversation_key(connection, vault, BUSY)
    connection.execute(
        insert(jobs).values(
            id=LONG_RUN, workspace_id=FIRST_WORKSPACE, kind="answer", pool="agent", state="done", lane="busy",
            conversation_id=BUSY, payload={}, created_at=now(), finished_at=now(), event_seq=3000,
        )
    )  # fmt: skip
    words = "a line of output that somebody may want to read\n" * 8
    turns = []
    for seq in range(1, 3001):
        kind, data, said = _event(seq, words)
        sealed = seal(key, said, "event", LONG_RUN, seq)
        turns.append({"kind": kind, "data": data, "sealed": sealed, "seq": seq})
    connection.execute(
        insert(events).values(
            workspace_id=FIRST_WORKSPACE, conversation_id=BUSY, job_id=LONG_RUN, version=1, fence=1, at=now(), tx=0
        ),
        turns,
    )  # fmt: skip
    written = Incoming(BUSY, Author("ada", "Ada"), words, addressed=True)
    texts = [{"seq": seq, "sealed": seal_message(key, BUSY, seq, written)} for seq in range(1, 1001)]
    connection.execute(
        insert(messages).values(
            conversation_id=BUSY, author="ada", addressed=True, trust="owner", event="message",
            connection_id="main", created_at=now(),
        ),
        texts,
    )  # fmt: skip
    connection.execute(update(conversations).where(conversations.c.id == BUSY).values(last_seq=1000))


def _event(seq: int, words: str) -> tuple[str, dict[str, object], dict[str, object]]:
    """The events of a run whose every turn calls a tool."""
    call = f"call{seq // 4}"
    usage = {"usage": {"input": 1000, "output": 50}, "model": "anthropic/some", "cost": 1}
    tool = {"type": "tool_use", "id": call, "name": "bash", "input": {"command": "ls"}}
    ended = {
        "call_id": call,
        "name": "bash",
        "status": "ok",
        "exit_code": 0,
        "took_ms": 20,
        "is_error": False,
    }
    return {
        0: ("turn.started", {"turn": seq // 4}, {"input": []}),
        1: ("turn.finished", usage, {"content": [{"type": "text", "text": words}, tool]}),
        2: ("tool.started", {"call_id": call, "name": "bash", "tier": "exec"}, {}),
        3: ("tool.finished", ended, {"content": words, "images": []}),
    }[seq % 4]  # type: ignore[return-value]


def _fill(connection: Connection, sql: Sql, size: float) -> None:
    """A hundred thousand jobs, a million events, and what belongs to them."""
    jobs_, conversations_ = int(100_000 * size), int(10_000 * size)
    connection.execute(
        insert(conversations).values(
            workspace_id=FIRST_WORKSPACE, kind="chat", last_seq=1, created_at=now(), data_key=None
        ),
        [{"id": f"c{number}", "title": f"talk {number}"} for number in range(conversations_)],
    )
    for statement in _statements(sql, jobs_, conversations_):
        connection.execute(text(statement))


def _statements(sql: Sql, count: int, talks: int) -> tuple[str, ...]:
    def n(most: int) -> str:
        return f"WITH RECURSIVE n(i) AS (SELECT 2 UNION ALL SELECT i + 1 FROM n WHERE i < {most})"

    at = f"{sql.now} - ({count} - i) * 20"
    state = "CASE WHEN i % 997 = 0 THEN 'dead' WHEN i % 1499 = 0 THEN 'cancelled' ELSE 'done' END"
    kind = "CASE i % 2 WHEN 0 THEN 'answer' ELSE 'deliver' END"
    talk = f"'c' || (i % {talks})"
    return (
        f"""INSERT INTO job (id, workspace_id, kind, pool, state, lane, priority, run_at, attempts, max_attempts,
            fence, cancel_requested, event_seq, conversation_id, connection_id, covers_from, payload, reason,
            created_at, finished_at)
            {n(count)} SELECT i, 'main', {kind}, 'agent', {state}, 'lane' || i, 0, {at}, 1, 5, 1, false, 10, {talk},
            'main', 0, {sql.json(100)}, '', {at}, {at} + 5 FROM n""",
        f"""INSERT INTO attempt (job_id, fence, number, owner, started_at, ended_at, outcome, reason, cost)
            {n(count)} SELECT i, 1, 1, 'proc_old', {at}, {at} + 4, 'done', '', 0 FROM n""",
        *(
            f"""INSERT INTO event (workspace_id, kind, version, job_id, conversation_id, seq, fence, data, tx, at)
            {n(count)} SELECT 'main', 'attempt.finished', 1, i, {talk}, {seq}, 1,
            {sql.json(60)}, 0, {at} FROM n"""
            for seq in range(1, 11)
        ),
        f"""INSERT INTO delivery (id, workspace_id, connection_id, external_id, body_hash, source, event, note,
            conversation_id, message_seq, sealed, received_at)
            {n(count)} SELECT i, 'main', 'main', 'd' || i, 'h' || i, 'webhook', 'message', '', {talk}, 1,
            {sql.blob}, {at} FROM n""",
        f"""INSERT INTO spend (workspace_id, agent_id, conversation_id, connection_id, job_id, key, model, day,
            micros, settled)
            {n(count)} SELECT 'main', 'agent' || (i % 3), {talk}, 'main', i, 'turn:1', 'anthropic/m' || (i % 4),
            {sql.day}, i % 5000, true FROM n""",
        f"""INSERT INTO audit_entry (workspace_id, member_id, name, via, address, action, subject, data, status, at)
            {n(count)} SELECT 'main', '', 'owner', 'session', '', 'jobs.steer', '', {sql.json(0)}, 303, {at} FROM n""",
    )
