"""One suite over every registered integration: what Gofer relies on when it runs a stranger's code."""

from __future__ import annotations

import dataclasses
import importlib.util
import json
import sys
from importlib.metadata import EntryPoint
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.case import Case
from gofer.connections.changes import checked_settings
from gofer.connections.registry import IntegrationRegistry
from gofer.errors import ConfigError, Malformed, Refused, Unset
from gofer.intake.receive import SECRET_HEADERS
from gofer.integration import JobScope, Outgoing, Parsed, Request
from gofer.vault.redaction import Secret

TESTS = Path(__file__).parents[1]
REGISTRY = IntegrationRegistry.installed()


def load_case(name: str) -> Case:
    """By path, for an integration's name may be that of an installed package."""
    path = TESTS / name / "contract.py"
    spec = importlib.util.spec_from_file_location(f"contract_of_{name}", path)
    assert spec is not None, path
    assert spec.loader is not None, path
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    case: Case = module.CASE
    return case


@pytest.fixture(params=sorted(REGISTRY.integrations), scope="module")
def case(request: pytest.FixtureRequest) -> Case:
    return load_case(request.param)


def test_every_announced_integration_loads() -> None:
    assert REGISTRY.broken == {}


STRANGERS = """
from gofer.integration import Integration


class Sound(Integration):
    name = "sound"


class Shouted(Integration):
    name = "Shouted!"


class Unkept(Integration):
    name = "unkept"
    secrets = ("token",)


class Unset(Integration):
    name = "unset"
    settings = dict


sound, shouted, unkept, unset, nothing = Sound(), Shouted(), Unkept(), Unset(), object()
"""


def test_a_strangers_package_that_is_broken_costs_only_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "strangers.py").write_text(STRANGERS)
    (tmp_path / "leaving.py").write_text("raise SystemExit(5)")
    monkeypatch.syspath_prepend(tmp_path)
    announced = {
        "sound": "strangers:sound",
        "Shouted!": "strangers:shouted",
        "unkept": "strangers:unkept",
        "unset": "strangers:unset",
        "nothing": "strangers:nothing",
        "missing": "strangers:missing",
        "other": "strangers:sound",
        "leaving": "leaving:integration",
        "nowhere": "nowhere:integration",
    }
    registry = IntegrationRegistry(
        EntryPoint(name, value, "gofer.integrations") for name, value in announced.items()
    )
    assert list(registry.integrations) == ["sound"]
    assert registry.broken.keys() == announced.keys() - {"sound"}
    assert registry.packages["leaving"] == "leaving"


def test_one_that_nobody_uses_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "strangers.py").write_text(STRANGERS)
    (tmp_path / "unused.py").write_text("raise RuntimeError('somebody needs me')")
    monkeypatch.syspath_prepend(tmp_path)
    announced = {"sound": "strangers:sound", "unused": "unused:integration"}
    registry = IntegrationRegistry(
        EntryPoint(name, value, "gofer.integrations") for name, value in announced.items()
    )
    assert registry.get("sound").name == "sound"
    assert registry.packages == {}, "it was loaded as well"
    assert "somebody needs me" in registry.broken["unused"]


def test_its_name_decides_the_rest(case: Case) -> None:
    name = case.integration.name
    assert name == name.lower()
    assert REGISTRY.get(name) is case.integration
    assert case.integration.summary
    assert (TESTS.parent / "docs" / "integrations" / f"{name}.md").exists()


def test_it_says_what_its_tools_are_called(case: Case) -> None:
    message = case.integration.parse(case.message(), case.account).message
    assert message is not None
    brought = [
        *case.integration.tools(case.account, message),
        *case.integration.delegated_tools(case.account, message.author.id),
    ]
    assert {tool.name for tool in brought} == set(case.integration.tool_names)


# Verifying.


def test_the_genuine_is_let_in(case: Case) -> None:
    for request in (case.message(), case.ignored()):
        case.integration.verify(request, case.account)


def refused(case: Case, request: Request) -> bool:
    with pytest.raises(Refused):
        case.integration.verify(request, case.account)
    return True


def test_a_request_without_any_one_of_what_proves_it_is_refused(case: Case) -> None:
    request = case.message()
    assert refused(case, Request(request.body))
    proving = secret_headers(case, request)
    assert proving, "no header proves a request"
    for name in proving:
        kept = tuple(header for header in request.headers if header[0] != name)
        assert refused(case, Request(request.body, kept))


@pytest.mark.parametrize(
    "value", [b"", b"x", "\u00fc".encode(), b"\xff\xfe", b"0" * 8192, b"sha256=", b"sha256=" + b"0" * 64]
)
def test_a_false_proof_of_any_shape_is_refused(case: Case, value: bytes) -> None:
    request = case.message()
    for name in secret_headers(case, request):
        assert refused(case, with_header(request, name, value))


def test_a_doubled_proof_is_refused(case: Case) -> None:
    request = case.message()
    for name in secret_headers(case, request):
        proof = next(header for header in request.headers if header[0] == name)
        assert refused(case, Request(request.body, (*request.headers, proof)))


def test_a_changed_body_is_refused(case: Case) -> None:
    if case.signed_body:
        request = case.message()
        for body in (
            request.body + b" ",
            request.body[:-1],
            json.dumps(json.loads(request.body), indent=1).encode(),
        ):
            assert refused(case, Request(body, request.headers))


@pytest.mark.parametrize("value", ["", "   ", None])
def test_without_its_secrets_nothing_is_let_in(case: Case, value: str | None) -> None:
    secrets = {} if value is None else {name: Secret(value) for name in case.account.secrets}
    with pytest.raises(Unset):
        case.integration.verify(case.message(), dataclasses.replace(case.account, secrets=secrets))


def secret_headers(case: Case, request: Request) -> list[str]:
    hidden = SECRET_HEADERS | case.integration.secret_headers
    return [name for name, _ in request.headers if name in hidden]


def with_header(request: Request, name: str, value: bytes) -> Request:
    return Request(request.body, tuple((key, value if key == name else old) for key, old in request.headers))


# Reading.


def test_a_message_is_read_whole_and_the_same_each_time(case: Case) -> None:
    parsed = case.integration.parse(case.message(), case.account)
    assert parsed == case.integration.parse(case.message(), case.account)
    assert parsed.delivery_id
    assert parsed.message is not None
    assert parsed.message.addressed
    assert parsed.message.conversation
    assert parsed.message.author.id
    assert parsed.message.text


def test_what_needs_no_answer_says_why(case: Case) -> None:
    parsed = case.integration.parse(case.ignored(), case.account)
    assert parsed.message is None
    assert parsed.note


HOSTILE = [
    b"", b"{", b"null", b"[]", b"0", b'""', b"{}", b"[" * 100_000, b'{"a":' * 50_000, b"1" * 5000, b"NaN",
    b'{"a":1,"a":2}', b'"\\ud800"', "{}".encode("utf-16"), b'{"id":"\\u0000"}', b"\xff\xfe\x00", b"\xef\xbb\xbf{}",
]  # fmt: skip


@pytest.mark.parametrize("body", HOSTILE, ids=lambda body: repr(body[:12]))
def test_a_hostile_body_is_malformed_and_no_surprise(case: Case, body: bytes) -> None:
    with pytest.raises(Malformed):
        case.integration.parse(Request(body, case.message().headers), case.account)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=2),
)


@settings(max_examples=60, deadline=None, database=None)
@given(data=st.data())
def test_any_part_of_a_message_may_be_missing_or_of_another_kind(case: Case, data: st.DataObject) -> None:
    value = json.loads(case.message().body)
    place = value
    for _ in range(data.draw(st.integers(0, 3))):
        inner = [key for key, item in place.items() if isinstance(item, dict)]
        if not inner:
            break
        place = place[data.draw(st.sampled_from(sorted(inner)))]
    key = data.draw(st.sampled_from(sorted(place) or ["nothing"]))
    if data.draw(st.booleans()):
        place.pop(key, None)
    else:
        place[key] = data.draw(JSON)
    request = Request(json.dumps(value).encode(), case.message().headers)
    try:
        parsed = case.integration.parse(request, case.account)
    except Malformed:
        return
    assert isinstance(parsed, Parsed)
    assert parsed.message is not None or parsed.note


def test_no_secret_is_kept_with_a_delivery(case: Case) -> None:
    hidden = SECRET_HEADERS | case.integration.secret_headers
    kept = b"".join(value for name, value in case.message().headers if name not in hidden)
    for secret in case.account.secrets.values():
        assert secret.reveal().encode() not in kept
    assert all(secret.reveal() not in repr(case.account) for secret in case.account.secrets.values())


def test_a_setting_nobody_knows_is_refused(case: Case) -> None:
    with pytest.raises(ConfigError, match="no_such_setting"):
        checked_settings(case.integration, {**case.account.settings, "no_such_setting": 1})


async def test_what_a_shell_is_given_holds_no_secret(case: Case) -> None:
    parsed = case.integration.parse(case.message(), case.account)
    assert parsed.message is not None
    async with case.serve() as service:
        # Said at the service that is served: what the captured one tells of its own place is not true there.
        message = dataclasses.replace(
            parsed.message, conversation=service.conversation, stable_id="", facts={}
        )
        job = JobScope()
        given = await case.integration.shell_access(message, dataclasses.replace(service.account, job=job))
        if given is not None:
            inside = repr((given, given.setup)).encode() + b"".join(given.files.values())
            passwords = [given.password, *(rule.password for rule in given.rules)]
            lent = [one if isinstance(one, str) else await one("") for one in passwords]
            hidden = [*lent, *(secret.reveal() for secret in service.account.secrets.values())]
            assert not [one for one in hidden if one and one.encode() in inside]
        await job.end()


# Answering.

LONG = "".join(f"Line {n} with some words and a crab \U0001f980.\n" for n in range(4000))


@pytest.mark.parametrize("text", ["short", "x" * 200_000, LONG], ids=["short", "one long word", "many lines"])
def test_splitting_loses_nothing(case: Case, text: str) -> None:
    parts = list(case.integration.split(text))
    assert all(part.strip() for part in parts)
    assert "".join("".join(parts).split()) == "".join(text.split())


async def test_a_reply_is_placed_once_and_completing_it_again_does_no_harm(case: Case) -> None:
    async with case.serve() as service:
        outgoing = reply(service.conversation)
        external_id = await case.integration.place(outgoing, service.account)
        for _ in range(3):
            await case.integration.complete(outgoing, external_id, service.account)
        assert service.texts() == [outgoing.text]


async def test_what_was_placed_is_found_again_and_nothing_else(case: Case) -> None:
    if case.finds:
        async with case.serve() as service:
            outgoing = reply(service.conversation)
            assert await case.integration.find(outgoing, service.account) is None
            external_id = await case.integration.place(outgoing, service.account)
            assert await case.integration.find(outgoing, service.account) == external_id
            other = dataclasses.replace(outgoing, id="gofer-8-final-1")
            assert await case.integration.find(other, service.account) is None


def reply(conversation: str, **values: Any) -> Outgoing:
    return Outgoing(id="gofer-7-final-1", conversation=conversation, text="An answer.", **values)
