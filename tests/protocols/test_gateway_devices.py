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

from protocols.gateway_client import Frame, GatewayRefused, hello_params, line
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
