"""Webhooks that are recorded and sent again, and keys that have to be replaced."""

from __future__ import annotations

import hashlib
import hmac
import json
import time

import pytest

from gofer.connections.changes import add_connection
from gofer.doctor import examine
from gofer.errors import Refused, Unset
from gofer.integration import MAX_SIGNATURE_AGE, ConnectionContext, Integration, Request, sign_body
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.vault.redaction import Secret
from gofer_hello import integration as hello
from gofer_webchat import integration as webchat
from support.web_server import House

KEY, NEXT = "a-key-of-the-tests", "the-key-that-comes-after-it"
BODY = b'{"id": "1"}'
NOW = 1_800_000_000.0
HEADERS = {"hello": "x-hello-signature", "webchat": "x-webchat-signature"}

both = pytest.mark.parametrize("integration", [hello, webchat], ids=["hello", "webchat"])


def verify(integration: Integration, signature: str, at: float = NOW, **secrets: str) -> str | None:
    known = {name: Secret(value) for name, value in ({"signing_key": KEY} | secrets).items()}
    request = Request(BODY, ((HEADERS[integration.name], signature.encode()),), received_at=at)
    return integration.verify(request, ConnectionContext("x", "x", {}, known))


@both
@pytest.mark.parametrize("away", [0, MAX_SIGNATURE_AGE, -MAX_SIGNATURE_AGE])
def test_a_signature_is_good_for_five_minutes(integration: Integration, away: float) -> None:
    assert verify(integration, sign_body(BODY, KEY, NOW + away)) is None


@both
@pytest.mark.parametrize("away", [MAX_SIGNATURE_AGE + 1, -MAX_SIGNATURE_AGE - 1, -NOW])
def test_an_old_one_is_refused(integration: Integration, away: float) -> None:
    with pytest.raises(Refused, match="clock"):
        verify(integration, sign_body(BODY, KEY, NOW + away))


@both
def test_the_time_is_signed_too(integration: Integration) -> None:
    old = sign_body(BODY, KEY, NOW - 1000)
    with pytest.raises(Refused):
        verify(integration, old.replace(str(int(NOW - 1000)), str(int(NOW))))
    mac = hmac.new(KEY.encode(), BODY, hashlib.sha256).hexdigest()
    with pytest.raises(Refused):
        verify(integration, f"t={int(NOW)},v1={mac}")


@both
@pytest.mark.parametrize("odd", ["", "t=,v1=", "t=1", "v1=0", "t=-5,v1=" + "0" * 64, "t=" + "9" * 30])
def test_what_is_no_signature_is_refused(integration: Integration, odd: str) -> None:
    with pytest.raises(Refused):
        verify(integration, odd)


@both
def test_the_old_form_is_taken_with_a_word_to_the_owner(integration: Integration) -> None:
    told = verify(integration, hmac.new(KEY.encode(), BODY, hashlib.sha256).hexdigest())
    assert told is not None
    assert "t=SECONDS,v1=HEX" in told


@both
def test_two_keys_are_accepted_while_one_is_replaced(integration: Integration) -> None:
    for key in (KEY, NEXT):
        assert verify(integration, sign_body(BODY, key, NOW), next_signing_key=NEXT) is None
    with pytest.raises(Refused):
        verify(integration, sign_body(BODY, NEXT, NOW))
    with pytest.raises(Refused):
        verify(integration, sign_body(BODY, "another key", NOW), next_signing_key=NEXT)


@both
def test_a_key_that_is_to_come_does_not_stand_in_for_one_that_is_missing(integration: Integration) -> None:
    request = Request(BODY, ((HEADERS[integration.name], sign_body(BODY, NEXT, NOW).encode()),))
    with pytest.raises(Unset):
        integration.verify(request, ConnectionContext("x", "x", {}, {"next_signing_key": Secret(NEXT)}))


def test_the_doctor_names_a_sender_that_signs_without_a_time(house: House) -> None:
    connection = house.write(
        add_connection,
        vault=house.platform.vault,
        workspace_id=FIRST_WORKSPACE,
        integration=house.platform.registry.get("hello"),
        name="hello",
        settings={"reply_url": "http://127.0.0.1:9/replies"},
        secrets_given={"signing_key": Secret(KEY)},
        by="test",
    )
    house.run(house.platform.secrets_changed())
    client = house.browser().client

    def post(number: int, signature: str) -> int:
        body = json.dumps({"id": str(number), "ping": True}).encode()
        made = hmac.new(KEY.encode(), body, hashlib.sha256).hexdigest()
        dated = sign_body(body, KEY, time.time())
        headers = {"x-hello-signature": {"old": made, "new": dated}[signature]}
        return client.post(f"/hooks/{connection}", content=body, headers=headers).status_code

    def warned() -> bool:
        found = house.run(examine(house.platform))
        return any(each.check == "sender of hello" and "without a time" in each.line for each in found)

    assert post(1, "old") == 200
    assert warned()
    assert post(2, "new") == 200
    assert not warned()
