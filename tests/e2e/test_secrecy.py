"""A canary secret in every disguise goes in wherever text goes in, and must come out nowhere."""

from __future__ import annotations

import asyncio
import base64
import json
import urllib.parse
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

from sqlalchemy import Connection, select

from e2e.scenario import KEY, Scenario, prepared
from gofer.store.encryption import conversation_key
from gofer.store.tables import conversations, deliveries, events, messages, replies
from gofer.vault.envelope import Vault, aad
from gofer.vault.keyring import open_ring
from gofer_standins.hello import HelloService

CANARY = "canary/7Qz+4wXk9?T2&vB6~mN1"
"""With characters that each encoding writes differently."""


def disguises(secret: str) -> dict[str, str]:
    raw = secret.encode()
    return {
        "plain": secret,
        "in a sentence": f"the key is {secret}, keep it",
        "base64": base64.b64encode(raw).decode(),
        "base64 for URLs": base64.urlsafe_b64encode(raw).decode(),
        "base64 inside": base64.b64encode(b"user:" + raw).decode(),
        "URL": urllib.parse.quote(secret, safe=""),
        "form": urllib.parse.quote_plus(secret),
        "JSON": json.dumps(secret),
        "hexadecimal": raw.hex(),
    }


def traces(text: str) -> Iterator[str]:
    """Which disguises of the canary are in a text."""
    core = {name: said for name, said in disguises(CANARY).items() if name not in ("in a sentence", "JSON")}
    # The middle of "base64 inside" is shifted by its prefix; its own whole is what was sent.
    for name, said in core.items():
        if said in text:
            yield name


async def test_a_canary_shows_up_nowhere(database_url: str, data_dir: Path) -> None:
    url = "" if database_url.startswith("sqlite") else database_url
    async with prepared(data_dir, url, log_level="debug", canary=CANARY) as scenario:
        assert isinstance(scenario.service, HelloService)
        living = scenario.start().wait_until_ready()
        answers = await _send_everywhere(scenario)
        assert await scenario.settle()
        metrics = (await scenario.client.get(f"http://127.0.0.1:{scenario.port}/metrics")).text
        refusals = (await scenario.control("GET", "/refusals")).text
        doctor = (await scenario.control("GET", "/doctor")).text
        assert living.stop() == 0
        seen = {
            "log": scenario.log.read_text(),
            "answers": "\n".join(answers),
            "replies": "\n".join(reply.text for reply in scenario.service.ledger),
            "metrics": metrics,
            "refusals": refusals,
            "doctor": doctor,
            **await scenario.read(partial(_stored, vault=Vault(open_ring(data_dir, ciphertext_exists=True)))),
        }
    assert "marked" not in seen["log"], "words of people do not belong in a log"
    assert len(scenario.acknowledged["kitchen"]) == len(disguises(CANARY))
    for place in ("deliveries", "messages"):
        assert seen[place].count("[secret:canary]") >= len(disguises(CANARY)), (
            f"nothing was masked in {place}"
        )
    for place, text in seen.items():
        assert text, place
        assert not list(traces(text)), f"{list(traces(text))} in {place}"
        assert KEY not in text, f"the signing key is in {place}"


async def _send_everywhere(scenario: Scenario) -> list[str]:
    """In texts, names, headers, paths, queries, refused and malformed bodies; returns what was answered."""
    hook = f"http://127.0.0.1:{scenario.port}/hooks/{scenario.connection_id}"
    answers = []
    for number, said in enumerate(disguises(CANARY).values()):
        await scenario.say(f"c{number}", "kitchen", said)
        quoted = urllib.parse.quote(said, safe="")
        for target, body in (
            (f"{hook}/", said.encode()),
            (f"{hook}?key={quoted}", b"{"),
            (f"http://127.0.0.1:{scenario.port}/hooks/{quoted}", b"{}"),
            (f"http://127.0.0.1:{scenario.port}/{quoted}", b"{}"),
            (hook, f"{{{said}".encode()),
        ):
            headers = scenario.headers(body) | {"authorization": f"Bearer {quoted}", "x-note": quoted}
            answers.append((await scenario.client.post(target, content=body, headers=headers)).text)
    # In two halves, as a stream brings it; and in a header beside a message that is kept.
    body = json.dumps({"id": "half", "room": "kitchen", "from": "ada", "text": f"a {CANARY} b"}).encode()

    async def halves() -> Any:
        at = body.index(b"7Qz")
        yield body[:at]
        await asyncio.sleep(0.01)
        yield body[at:]

    headers = scenario.headers(body) | {"x-note": CANARY, "cookie": CANARY}
    answers.append((await scenario.client.post(hook, content=halves(), headers=headers)).text)
    return answers


def _stored(connection: Connection, vault: Vault) -> dict[str, str]:
    """Everything in the store, opened as only the platform itself can."""
    kept: dict[str, list[str]] = {"deliveries": [], "messages": [], "stored replies": [], "events": []}
    keys = {
        id_: conversation_key(connection, vault, id_)
        for id_ in connection.execute(select(conversations.c.id)).scalars()
    }
    for row in connection.execute(select(deliveries)):
        place = aad("delivery", row.connection_id, row.external_id)
        kept["deliveries"].append(f"{row} {keys[row.conversation_id].open(bytes(row.sealed), place)!r}")
    for row in connection.execute(select(messages)):
        place = aad("message", row.conversation_id, row.seq)
        kept["messages"].append(f"{row} {keys[row.conversation_id].open(bytes(row.sealed), place)!r}")
    for row in connection.execute(select(replies)):
        place = aad("reply", row.job_id, row.kind, row.part)
        kept["stored replies"].append(f"{row} {keys[row.conversation_id].open(bytes(row.sealed), place)!r}")
    for row in connection.execute(select(events)):
        sealed = ""
        if row.sealed is not None:
            place = aad("event", row.job_id, row.seq)
            sealed = repr(keys[row.conversation_id].open(bytes(row.sealed), place))
        kept["events"].append(f"{row} {sealed}")
    kept["titles"] = [str(row) for row in connection.execute(select(conversations.c.title))]
    return {name: "\n".join(rows) for name, rows in kept.items()}
