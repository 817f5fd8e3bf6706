"""Every payload captured from GitHub (npm @octokit/webhooks-examples), whole and mutilated."""

from __future__ import annotations

import io
import json
import os
import tarfile
from pathlib import Path
from typing import Any

import httpx2
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from github_scene import account, request
from gofer.errors import Malformed
from gofer_github import integration
from gofer_github.events import IGNORED, MESSAGES, NOTED

PACKAGE, VERSION = "@octokit/webhooks-examples", "7.6.1"
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
def captured() -> list[tuple[str, dict[str, Any]]]:
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


def test_every_kind_gets_the_right_answer(captured: list[tuple[str, dict[str, Any]]]) -> None:
    kinds = {kind for kind, _ in captured}
    assert (len(captured), len(kinds)) == (329, 58)
    assert kinds <= MESSAGES | set(NOTED) | IGNORED
    assert len(MESSAGES | set(NOTED) | IGNORED) == len(MESSAGES) + len(NOTED) + len(IGNORED)
    for kind, payload in captured:
        parsed = integration.parse(request(kind, json.dumps(payload).encode()), account())
        assert parsed.event.startswith(kind)
        if parsed.message is None:
            assert parsed.note
            assert parsed.note != "a kind of event that is not known yet"
        else:
            assert kind in MESSAGES
            assert parsed.message.conversation.startswith(f"{payload['repository']['full_name']}#")


JUNK: st.SearchStrategy[Any] = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.text(max_size=20)
    | st.just([])
    | st.just({})
    | st.just([[]])
)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_a_mutilated_payload_is_malformed_or_understood(
    captured: list[tuple[str, dict[str, Any]]], data: st.DataObject
) -> None:
    wanted = [one for one in captured if one[0] in MESSAGES]
    kind, payload = data.draw(st.sampled_from(wanted))
    value = json.loads(json.dumps(payload))
    for _ in range(data.draw(st.integers(1, 3))):
        _mutilate(value, data)
    try:
        parsed = integration.parse(request(kind, json.dumps(value).encode()), account())
    except Malformed:
        return
    assert parsed.message is not None or parsed.note


def _mutilate(value: dict[str, Any], data: st.DataObject) -> None:
    place = value
    for _ in range(data.draw(st.integers(0, 3))):
        inner = sorted(key for key, item in place.items() if isinstance(item, dict) and item)
        if not inner:
            break
        place = place[data.draw(st.sampled_from(inner))]
    if place:
        key = data.draw(st.sampled_from(sorted(place)))
        place[key] = data.draw(JUNK)
