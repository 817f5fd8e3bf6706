"""Every payload captured from GitHub (npm @octokit/webhooks-examples), whole and mutilated."""

from __future__ import annotations

import io
import json
import os
import random
import tarfile
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import select

from gofer.errors import Malformed
from gofer.integration import Parsed
from gofer.store.tables import deliveries, replies
from gofer_github import integration
from gofer_github.webhook import IGNORED, MESSAGES, NOTED
from support.github_scene import Scene, account, gofer, request

PACKAGE, VERSION = "@octokit/webhooks-examples", "7.6.1"
Captured = list[tuple[str, dict[str, Any]]]
"""Kind and payload of each."""
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "gofer-tests"


def _registry() -> str:
    return os.environ.get("NPM_CONFIG_REGISTRY", "").rstrip("/") or _configured()


def _configured() -> str:
    import subprocess

    try:
        done = subprocess.run(
            ["npm", "config", "get", "registry"], capture_output=True, text=True, timeout=20
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip().rstrip("/")


def _fetched() -> bytes:
    url = f"{_registry()}/{PACKAGE}/-/webhooks-examples-{VERSION}.tgz"
    answer = httpx2.get(url, timeout=20, follow_redirects=True)
    answer.raise_for_status()
    with tarfile.open(fileobj=io.BytesIO(answer.content)) as archive:
        member = archive.extractfile("package/api.github.com/index.json")
        assert member is not None
        return member.read()


@pytest.fixture(scope="session")
def captured() -> Captured:
    """Kind and payload of all 329, fetched once and kept in a cache outside the repository."""
    kept = CACHE / f"webhooks-examples-{VERSION}.json"
    if not kept.exists():
        try:
            data = _fetched()
        except (httpx2.HTTPError, OSError, ValueError, tarfile.TarError) as error:
            pytest.skip(f"{PACKAGE}@{VERSION} cannot be fetched from npm: {type(error).__name__}")
        CACHE.mkdir(parents=True, exist_ok=True)
        partial = kept.with_suffix(f".{os.getpid()}")
        partial.write_bytes(data)
        partial.replace(kept)
    kinds = json.loads(kept.read_bytes())
    return [(kind["name"], example) for kind in kinds for example in kind["examples"]]


TALK = {
    "issue_comment.created",
    "issues.opened",
    "pull_request.opened",
    "pull_request_review.submitted",
    "pull_request_review_comment.created",
}
GESTURES = {
    "issues.labeled": ("label", {"label": {"name": "Gofer"}}),
    "issues.assigned": ("assignment", {"assignee": {"login": "gofer[bot]"}}),
    "pull_request.labeled": ("label", {"label": {"name": "Gofer"}}),
    "pull_request.assigned": ("assignment", {"assignee": {"login": "gofer[bot]"}}),
    "pull_request.review_requested": ("review_request", {"requested_reviewer": {"login": "gofer[bot]"}}),
}
RULED = {"pull_request.synchronize", "pull_request.ready_for_review"}
CHECKS = {"conclusion": "failure", "head_branch": "gofer/7", "pull_requests": [{"number": 7}]}
NOTHING = {
    "nothing is asked for", "checks that did not fail ask for nothing", "heard once for all as its check_suite",
    "statuses that did not fail ask for nothing", "somebody else's checks",
}  # fmt: skip


def test_every_kind_gets_the_right_answer(captured: Captured) -> None:
    kinds = {kind for kind, _ in captured}
    assert (len(captured), len(kinds)) == (329, 58)
    assert kinds <= MESSAGES | set(NOTED) | IGNORED
    assert len(MESSAGES | set(NOTED) | IGNORED) == len(MESSAGES) + len(NOTED) + len(IGNORED)
    for kind, payload in captured:
        parsed = parse(kind, payload)
        action = payload.get("action")
        event = f"{kind}.{action}" if action else kind
        assert parsed.event == event
        if kind not in MESSAGES:
            assert parsed.note == NOTED.get(kind, "not listened to")
            assert parsed.message is None
        elif event == "pull_request_review.submitted" and not payload["review"]["body"]:
            assert parsed.note == "a review without words of its own"
        elif event in TALK:
            assert parsed.message is not None
            assert parsed.message.trigger == ("rule" if event.endswith(".opened") else "any")
            assert parsed.message.conversation.startswith(f"{payload['repository']['full_name']}#")
        elif event in GESTURES or event in RULED:
            ours = parsed.message is not None and parsed.message.trigger == "rule"
            assert ours or parsed.note == "a person that is not us", event
        elif action == "edited":
            assert "edited after it was said" in parsed.note
        else:
            assert parsed.note in NOTHING, event


def test_every_captured_request_that_is_meant_for_us_reaches_us(captured: Captured) -> None:
    """The same payloads, each with the one thing in it that makes it a request."""
    seen = set()
    for kind, payload in captured:
        event = f"{kind}.{payload.get('action')}"
        value = json.loads(json.dumps(payload))
        if event in TALK:
            trigger, place = "mention", kind.removesuffix("_opened")
            said = {"issues": "issue", "issue_comment": "comment", "pull_request_review": "review"}
            value[said.get(place, "comment" if "comment" in place else place)]["body"] = "@gofer hello"
        elif event in GESTURES:
            trigger, meant = GESTURES[event]
            value |= meant
        elif event == "check_suite.completed":
            trigger = "check"
            value["check_suite"] |= CHECKS
        else:
            continue
        value["sender"]["type"] = "User"
        message = parse(kind, value).message
        assert message is not None, event
        assert (message.addressed, message.trigger) == (True, trigger), event
        seen.add(event)
    assert seen == {*TALK, *GESTURES, "check_suite.completed"}


def parse(kind: str, payload: dict[str, Any]) -> Parsed:
    return integration.parse(request(kind, json.dumps(payload).encode()), account())


JUNK: list[Any] = [None, True, -1, 0, 7, 2**70, 1.5, "", "x", "\u202e@gofer", [], {}, [[]], [None], {"a": 1}]


def test_a_mutilated_payload_is_malformed_or_understood(captured: Captured) -> None:
    chance = random.Random(58)
    for kind, payload in captured * 2:
        value = json.loads(json.dumps(payload))
        for _ in range(chance.randint(1, 3)):
            mutilate(value, chance)
        try:
            parsed = parse(kind, value)
        except Malformed:
            continue
        assert parsed.message is not None or parsed.note


def mutilate(value: dict[str, Any], chance: random.Random) -> None:
    """Put something else in the place of a value somewhere in it."""
    place = value
    for _ in range(chance.randint(0, 3)):
        inner = sorted(key for key, item in place.items() if isinstance(item, dict) and item)
        if not inner:
            break
        place = place[chance.choice(inner)]
    if place:
        place[chance.choice(sorted(place))] = chance.choice(JUNK)


async def test_every_captured_payload_is_taken_in_whatever_is_in_it(
    captured: Captured, scene: Scene, tmp_path: Path
) -> None:
    """Through the real door: acknowledged and recorded once, or refused with a reason; never a 500."""
    chance, secret = random.Random(329), scene.app.webhook_secret
    async with gofer(scene, tmp_path / "data") as running, httpx2.AsyncClient(timeout=60) as client:

        async def post(kind: str, body: bytes, delivery: str) -> int:
            signed = request(kind, body, secret=secret, delivery=delivery)
            headers = {name: value.decode() for name, value in signed.headers}
            return (await client.post(scene.app.hook_url, content=body, headers=headers)).status_code

        bodies = [(kind, json.dumps(payload).encode()) for kind, payload in captured]
        whole = [await post(kind, body, f"d-{number}") for number, (kind, body) in enumerate(bodies)]
        assert set(whole) == {200}
        kept = await running.rows(select(deliveries.c.event))
        said = [integration.parse(request(kind, body), account()).message_id for kind, body in bodies]
        once = {id_ or body for id_, (_, body) in zip(said, bodies, strict=True)}
        assert len(kept) == len(once), "the same body twice is one delivery, and so is the same comment"
        broken = []
        for number, (kind, body) in enumerate(chance.sample(bodies, 60)):
            cut = chance.randrange(len(body))
            damaged = (body[:cut], body[:cut] + b"\xff" + body[cut:], body.replace(b":", b"::", 1))
            broken.append(await post(kind, damaged[number % 3], f"b-{number}"))
        assert set(broken) <= {200, 400}, broken
        await running.quiet()
        assert await running.rows(select(replies.c.id)) == [], "nothing in them was asked of us"
