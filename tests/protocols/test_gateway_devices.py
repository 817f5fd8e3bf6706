"""Devices over OpenClaw's gateway protocol: a proof is good for one challenge, one token and two minutes."""

from __future__ import annotations

import base64
import hashlib
import time
from collections.abc import Callable
from typing import Any

import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, PublicFormat
from websockets.exceptions import ConnectionClosed

from gofer.devices import MAX_ASKED
from gofer.store.tables import devices
from gofer.web.auth import guard
from protocols.gateway_client import Frame, GatewayRefused, checker, gateway, hello_params, line
from support.patience import until
from support.web_server import House


def base64_url(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()


class Device:
    """A key, and what it signs."""

    def __init__(self) -> None:
        self.key = Ed25519PrivateKey.generate()
        self.public = self.key.public_key().public_bytes(Encoding.Raw, PublicFormat.Raw)
        self.id = hashlib.sha256(self.public).hexdigest()

    def proof(self, given: Frame, nonce: str, *, version: str = "v3", age: float = 0.0) -> Frame:
        """The `device` of a connect."""
        at = int((time.time() - age) * 1000)
        client, token = given["client"], given.get("auth", {}).get("token", "")
        parts = [version, self.id, client["id"], client["mode"], given["role"], ",".join(given["scopes"])]
        parts += [str(at), token, nonce]
        parts += [client["platform"].lower(), ""] if version == "v3" else []
        signature = base64_url(self.key.sign("|".join(parts).encode()))
        return {
            "id": self.id,
            "publicKey": base64_url(self.public),
            "signature": signature,
            "signedAt": at,
            "nonce": nonce,
        }


def connect_with(house: House, token: str, change: Callable[[Frame], None] | None = None, **how: Any) -> str:
    """Connect with a device; returns why it was refused, or nothing."""
    with line(house.url) as client:
        given = hello_params(token)
        given["device"] = Device().proof(given, client.frames[0]["payload"]["nonce"], **how)
        if change is not None:
            change(given)
        try:
            client.ask("connect", **given)
        except GatewayRefused as error:
            return error.detail
        return ""


@pytest.mark.parametrize("version", ["v2", "v3"])
def test_a_device_that_signs_the_challenge_enters(house: House, token: str, version: str) -> None:
    assert connect_with(house, token, version=version) == ""


def test_old_and_future_signatures_are_refused(house: House, token: str) -> None:
    assert connect_with(house, token, age=200) == "DEVICE_AUTH_SIGNATURE_EXPIRED"
    assert connect_with(house, token, age=-200) == "DEVICE_AUTH_SIGNATURE_EXPIRED"
    assert connect_with(house, token, age=60) == ""


def other_nonce(given: Frame) -> None:
    given["device"]["nonce"] = "another"


def other_id(given: Frame) -> None:
    given["device"]["id"] = "0" * 64


def other_key(given: Frame) -> None:
    given["device"]["publicKey"] = "AAAA"


def other_scopes(given: Frame) -> None:
    given["scopes"] = ["operator.read"]


def other_platform(given: Frame) -> None:
    given["client"] = {**given["client"], "platform": "plan9"}


def no_base64(given: Frame) -> None:
    given["device"]["signature"] = "not base64 at all!"


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (other_nonce, "NONCE_MISMATCH"),
        (other_id, "DEVICE_ID_MISMATCH"),
        (other_key, "PUBLIC_KEY_INVALID"),
        (other_scopes, "SIGNATURE_INVALID"),
        (other_platform, "SIGNATURE_INVALID"),
        (no_base64, "SIGNATURE_INVALID"),
    ],
)
def test_a_proof_of_something_else_is_refused(
    house: House, token: str, change: Callable[[Frame], None], code: str
) -> None:
    assert connect_with(house, token, change) == f"DEVICE_AUTH_{code}"


def test_a_proof_is_good_for_one_connection(house: House, token: str) -> None:
    device, given = Device(), hello_params(token)
    with line(house.url) as client:
        given["device"] = device.proof(given, client.frames[0]["payload"]["nonce"])
        client.ask("connect", **given)
    with line(house.url) as client:
        assert client.refused("connect", **given).detail == "DEVICE_AUTH_NONCE_MISMATCH"


def test_a_proof_does_not_stand_for_a_token(house: House, token: str) -> None:
    assert connect_with(house, "gofer_wrong") in ("AUTH_TOKEN_MISMATCH", "AUTH_RATE_LIMITED")
    assert connect_with(house, "") == "AUTH_TOKEN_MISSING"


FAR = {"X-Forwarded-For": "192.0.2.9"}
"""As a proxy on this machine says that somebody else asks."""


def connect_as(
    house: House, device: Device, token: str, headers: dict[str, str] | None = None, **more: Any
) -> Frame:
    """What a device gets in its hello; raises GatewayRefused."""
    with line(house.url, headers) as client:
        given = hello_params(token, **more)
        given["device"] = device.proof(given, client.frames[0]["payload"]["nonce"])
        hello: Frame = client.ask("connect", **given)
        assert client.ask("health")["ok"] is True
        auth: Frame = hello["auth"]
        return auth


def test_a_device_from_elsewhere_waits_for_an_owner(house: House, token: str) -> None:
    device = Device()
    with pytest.raises(GatewayRefused) as refused:
        connect_as(house, device, token, FAR)
    assert (refused.value.code, refused.value.detail) == ("NOT_PAIRED", "PAIRING_REQUIRED")
    assert refused.value.error["details"]["requestId"] == device.id
    with gateway(house, token) as owner:
        waiting = owner.ask("device.pair.list")["pending"]
        assert device.id in [each["requestId"] for each in waiting]
        owner.ask("device.pair.approve", requestId=device.id)
    issued = connect_as(house, device, token, FAR)["deviceToken"]
    # From here on its own token does.
    assert connect_as(house, device, issued, FAR)["scopes"]
    assert issued not in str(house.api(token).get("/devices").json())
    with gateway(house, token) as owner:
        rotated = owner.ask("device.token.rotate", deviceId=device.id, role="operator")
        checker("DeviceTokenRotateResult").validate(rotated)
    with pytest.raises(GatewayRefused) as refused:
        connect_as(house, device, issued, FAR)
    assert refused.value.detail in ("AUTH_DEVICE_TOKEN_MISMATCH", "AUTH_RATE_LIMITED")


def question_about(house: House, token: str, device: Device) -> Frame:
    """What the owners are asked about a device."""

    def asked() -> Frame | None:
        found = house.api(token).get("/questions").json()["questions"]
        return next((each for each in found if device.id[:16] in each["question"]), None)

    found: Frame = until(asked)
    return found


def pairing_required(house: House, device: Device, token: str, **more: Any) -> None:
    with pytest.raises(GatewayRefused) as refused:
        connect_as(house, device, token, FAR, **more)
    assert (refused.value.code, refused.value.detail) == ("NOT_PAIRED", "PAIRING_REQUIRED")


def state_of(house: House, token: str, device: Device) -> tuple[bool, bool]:
    found = house.api(token).get("/devices").json()["devices"]
    return next((each["paired"], each["waiting"]) for each in found if each["id"] == device.id)


def test_owners_are_asked_whether_a_device_may_connect(house: House, token: str) -> None:
    operator = house.token(house.member("olga", "operator", password=""), "write")
    device, scopes = Device(), ["operator.read", "operator.write"]
    for _ in range(3):  # a client tries again and again; the owners are asked once
        pairing_required(house, device, operator, scopes=scopes)
    asked = question_about(house, token, device)
    assert all(words in asked["question"] for words in ("`test`", "olga", "`operator.write`"))
    assert asked["choices"] == ["Approve", "Decline"]
    about = [each["question"] for each in house.api(token).get("/questions").json()["questions"]]
    assert sum(device.id[:16] in each for each in about) == 1
    # Nobody else reads or answers it.
    assert device.id[:16] not in house.api(operator).get("/questions").text
    answer = {"text": "Approve"}
    assert house.api(operator).post(f"/questions/{asked['id']}/answer", json=answer).status_code != 202
    assert state_of(house, token, device) == (False, True)
    assert house.api(token).post(f"/questions/{asked['id']}/answer", json=answer).status_code == 202
    until(lambda: state_of(house, token, device) == (True, False))
    assert connect_as(house, device, operator, FAR, scopes=scopes)["scopes"] == scopes
    entries = house.api(token).get("/audit").json()["entries"]
    assert ("device.paired", device.id) in [(each["action"], each["subject"]) for each in entries]


def test_a_device_that_is_declined_is_not_asked_about_again(house: House, token: str) -> None:
    device = Device()
    pairing_required(house, device, token)
    asked = question_about(house, token, device)
    house.api(token).post(f"/questions/{asked['id']}/answer", json={"text": "Decline"})
    until(lambda: state_of(house, token, device) == (False, False))
    pairing_required(house, device, token)
    assert device.id[:16] not in house.api(token).get("/questions").text
    # After a day it may ask again.
    old = devices.update().where(devices.c.id == device.id).values(created_at=devices.c.created_at - 90000)
    house.write(lambda connection: connection.execute(old).rowcount)
    pairing_required(house, device, token)
    assert question_about(house, token, device)["id"] != asked["id"]


@pytest.mark.parametrize("how", ["command", "gateway", "rejected", "removed"])
def test_a_command_ends_the_question(house: House, token: str, how: str) -> None:
    device = Device()
    pairing_required(house, device, token)
    question_about(house, token, device)
    if how == "command":
        assert house.api(token).post(f"/devices/{device.id}/pair", json={}).status_code == 200
    elif how == "removed":
        assert house.api(token).delete(f"/devices/{device.id}").status_code == 200
    else:
        verb = "approve" if how == "gateway" else "reject"
        with gateway(house, token) as owner:
            owner.ask(f"device.pair.{verb}", requestId=device.id)
            assert device.id not in str(owner.ask("device.pair.list")["pending"])
    assert device.id[:16] not in house.api(token).get("/questions").text
    if how in ("command", "gateway"):
        assert connect_as(house, device, token, FAR)["deviceToken"]
    elif how == "rejected":
        pairing_required(house, device, token)


def test_only_some_devices_of_a_member_are_asked_about_at_once(house: House, token: str) -> None:
    operator = house.token(house.member("omar", "operator", password=""), "write")
    waiting = [Device() for _ in range(MAX_ASKED + 1)]
    for device in waiting:
        pairing_required(house, device, operator)
    for device in waiting[:-1]:
        question_about(house, token, device)
    assert state_of(house, token, waiting[-1]) == (False, False)
    house.api(token).delete(f"/devices/{waiting[0].id}")
    until(lambda: waiting[0].id[:16] not in house.api(token).get("/questions").text)

    def asked() -> bool:
        pairing_required(house, waiting[-1], operator)
        return state_of(house, token, waiting[-1]) == (False, True)

    until(asked)


def test_a_devices_token_is_good_with_its_key_alone(house: House, token: str) -> None:
    device = Device()
    issued = connect_as(house, device, token)["deviceToken"]
    assert connect_as(house, device, issued)["scopes"]
    with pytest.raises(GatewayRefused) as refused:
        connect_as(house, Device(), issued)
    assert refused.value.detail in ("AUTH_DEVICE_TOKEN_MISMATCH", "AUTH_RATE_LIMITED")
    with line(house.url) as client:
        assert client.refused("connect", **hello_params(issued)).detail == "DEVICE_IDENTITY_REQUIRED"
    assert house.api(issued).get("/me").status_code == 401


def test_a_lesser_token_makes_no_greater_device(house: House) -> None:
    operator = house.token(house.member("odo", "operator", password=""), "write")
    bound = house.token(house.owner(), "write", agent="gofer")
    for value in (operator, bound, house.token(house.owner(), "write")):
        assert "deviceToken" not in connect_as(house, Device(), value)


@pytest.mark.parametrize("whose", ["the device's token", "its member's token"])
@pytest.mark.parametrize("asks", [True, False])
def test_a_device_that_is_removed_is_cut_off(
    house: House, token: str, whose: str, asks: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    device = Device()
    issued = connect_as(house, device, token)["deviceToken"]
    if not asks:
        monkeypatch.setattr(guard, "LOOK_AGAIN", 0.1)
    with gateway(house, token) as neighbour, line(house.url) as client:
        given = hello_params(issued if whose == "the device's token" else token)
        given["device"] = device.proof(given, client.frames[0]["payload"]["nonce"])
        client.ask("connect", **given)
        assert house.api(token).delete(f"/devices/{device.id}").status_code == 200
        with pytest.raises(ConnectionClosed):
            client.response(client.send("health", {}) if asks else "nothing")
        assert neighbour.ask("health")["ok"] is True


def test_a_device_of_somebody_else_is_not_taken(house: House, token: str) -> None:
    device = Device()
    connect_as(house, device, token)
    other = house.token(house.member("otis", "operator", password=""), "write")
    with pytest.raises(GatewayRefused) as refused:
        connect_as(house, device, other)
    assert refused.value.detail == "DEVICE_AUTH_INVALID"


def test_a_row_that_somebody_else_wrote_lets_nobody_in(house: House, token: str) -> None:
    device = Device()
    issued = connect_as(house, device, token)["deviceToken"]
    by_hand = devices.update().where(devices.c.id == device.id).values(scopes="operator.admin")
    house.write(lambda connection: connection.execute(by_hand).rowcount)
    with pytest.raises(GatewayRefused):
        connect_as(house, device, issued)
    house.write(lambda connection: connection.execute(devices.delete().where(devices.c.id == device.id)))


def test_only_owners_pair(house: House) -> None:
    operator = house.token(house.member("orson", "operator", password=""), "write")
    with gateway(house, operator) as client:
        assert client.refused("device.pair.list").code == "FORBIDDEN"
    assert house.api(operator).get("/devices").status_code == 403


def test_the_api_pairs_by_a_key(house: House, token: str) -> None:
    device = Device()
    given = {"name": "board", "public_key": base64_url(device.public), "scopes": ["operator.read"]}
    made = house.api(token).post("/devices", json=given)
    assert made.status_code == 201
    assert made.json()["id"] == device.id
    assert connect_as(house, device, made.json()["token"])["scopes"] == ["operator.read"]
    assert house.api(token).post("/devices", json=given).status_code == 409
    assert house.api(token).post("/devices", json={**given, "public_key": "AAAA"}).status_code in (400, 422)
    assert house.api(token).post("/devices", json={**given, "scopes": ["root"]}).status_code in (400, 422)
    assert house.api(token).delete(f"/devices/{device.id}").status_code == 200
    assert house.api(token).delete(f"/devices/{device.id}").status_code == 404
