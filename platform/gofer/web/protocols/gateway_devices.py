"""Devices over OpenClaw's gateway protocol: the proof of their key, letting them in, and what owners do with them.

A device has a key of Ed25519, and its id is a hash of the public half. It signs the nonce of the challenge and
what it asks for, so that a proof is good for one connection, one token and two minutes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import time
from collections.abc import Callable
from functools import partial
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey
from sqlalchemy import Connection

from gofer.devices import (
    ask_about_device,
    decline_device,
    find_device,
    forget_unpaired,
    pair_device,
    remove_device,
    require_device,
)
from gofer.jobs.notifications import JOBS
from gofer.vault.envelope import Vault
from gofer.web.auth import Visitor
from gofer.web.auth.devices import (
    add_device,
    has_room,
    list_devices,
    new_device_token,
    revoke_device_token,
)
from gofer.web.protocols.gateway_client import GatewayCall, Method, NoParams
from gofer.web.protocols.gateway_follow import now_ms
from gofer.web.protocols.gateway_frames import (
    ADMIN,
    PAIRING,
    ConnectParams,
    DeviceProof,
    Frame,
    GatewayError,
    Params,
    Text,
    invalid,
)

MAX_AGE = 120.0
"""Seconds that a signature may be old, or in the future."""


class RequestParams(Params):
    """A device that waits, by its request, whose id is the device's."""

    requestId: Text

    @property
    def id(self) -> str:
        """The device's id."""
        return self.requestId


class DeviceParams(Params):
    """A device by its id."""

    deviceId: Text

    @property
    def id(self) -> str:
        """The device's id."""
        return self.deviceId


def check_device(params: ConnectParams, nonce: str) -> None:
    """Raises GatewayError unless a client that names a device has signed this challenge with its key."""
    device = params.device
    if device is None:
        return
    raw = _decoded(device.publicKey)
    if len(raw) != 32:
        raise _refused("public key invalid", "PUBLIC_KEY_INVALID")
    if hashlib.sha256(raw).hexdigest() != device.id:
        raise _refused("id mismatch", "DEVICE_ID_MISMATCH")
    if device.nonce != nonce:
        raise _refused("nonce mismatch", "NONCE_MISMATCH")
    if abs(time.time() - device.signedAt / 1000) > MAX_AGE:
        raise _refused("signature expired", "SIGNATURE_EXPIRED")
    key, signature = Ed25519PublicKey.from_public_bytes(raw), _decoded(device.signature)
    if not any(_signed(key, signature, payload) for payload in payloads(params, device)):
        raise _refused("signature invalid", "SIGNATURE_INVALID")


def payloads(params: ConnectParams, device: DeviceProof) -> tuple[str, str]:
    """What a device may have signed: the newer form, and the one before it."""
    token = params.auth.token or params.auth.deviceToken or params.auth.bootstrapToken or ""
    client = params.client
    parts = [device.id, client.id, client.mode, params.role, ",".join(params.scopes)]
    parts += [str(device.signedAt), token.strip(), device.nonce]
    more = [_plain(client.platform), _plain(client.deviceFamily or "")]
    return "|".join(["v3", *parts, *more]), "|".join(["v2", *parts])


def _plain(value: str) -> str:
    """As the reference client writes it: lower case for ASCII alone."""
    return "".join(char.lower() if char.isascii() else char for char in value.strip())


def _signed(key: Ed25519PublicKey, signature: bytes, payload: str) -> bool:
    try:
        key.verify(signature, payload.encode("utf-8", "surrogatepass"))
    except InvalidSignature:
        return False
    return True


def _decoded(text: str) -> bytes:
    """Base64 for addresses, with or without padding; empty for what is none."""
    try:
        return base64.b64decode(text + "=" * (-len(text) % 4), altchars=b"-_", validate=True)
    except (binascii.Error, ValueError):
        return b""


def _refused(words: str, code: str) -> GatewayError:
    return invalid(f"device {words}", f"DEVICE_AUTH_{code}")


def let_device_in(
    connection: Connection,
    vault: Vault,
    params: ConnectParams,
    visitor: Visitor,
    scopes: tuple[str, ...],
    *,
    near: bool,
    address: str,
) -> tuple[str, bool] | GatewayError:
    """Let a device in that has proved its key; returns a token that is new for it, or none, and whether it is paired;
    or why not.

    From this machine nothing has to be paired; about any other device the owners are asked. A token is given only to a
    device that an owner has paired, or to whoever could make tokens anyway.
    """
    assert params.device is not None
    forget_unpaired(connection)
    device, whole = params.device, visitor.scopes is None and not visitor.agent
    known = find_device(connection, device.id)
    if known is not None and known.member_id != visitor.member_id:
        return invalid("device is paired with another member", "DEVICE_AUTH_INVALID")
    if known is None and near and not (whole and ADMIN in scopes and has_room(connection, visitor.member_id)):
        return "", False
    if known is None:
        name = params.client.displayName or params.client.id
        key, member_id = device.publicKey, visitor.member_id
        add_device(connection, member_id, public_key=key, name=name, scopes=scopes, paired=near)
    elif known.paired_at is None and near and ADMIN in scopes:
        pair_device(connection, vault, device.id, by=visitor.name)
    row = require_device(connection, device.id)
    if row.paired_at is None and not near:
        ask_about_device(connection, vault, row, member=visitor.name, address=address)
        return _not_paired(device.id)
    new = whole and row.paired_at and row.digest is None
    return new_device_token(connection, device.id) if new else "", row.paired_at is not None


def _not_paired(id_: str) -> GatewayError:
    return GatewayError(
        "NOT_PAIRED",
        "pairing required: the owners are asked. Connect again once one has approved, "
        f"or has run `gofer devices pair {id_[:16]}`",
        detail="PAIRING_REQUIRED",
        requestId=id_,
        deviceId=id_,
        reason="not-paired",
    )


async def pair_list(call: GatewayCall) -> Frame:
    """The devices there are, and those that wait."""
    found = await call.client.platform.database.read(list_devices)
    known = [each for each in found if not each["refused"]]
    return {
        "pending": [{**_device_frame(each), "requestId": each["id"]} for each in known if each["waiting"]],
        "paired": [_device_frame(each) for each in known if each["paired"]],
    }


def _device_frame(device: Frame) -> Frame:
    return {
        "deviceId": device["id"],
        "displayName": device["name"],
        "role": "operator",
        "scopes": device["scopes"],
        "ts": int(device["created_at"] * 1000),
    }


async def pair_approve(call: GatewayCall) -> Frame:
    """Pair a device that waits."""
    row = await _decide(call, pair_device)
    return {"requestId": row.id, "device": {"deviceId": row.id, "displayName": row.name}}


async def pair_reject(call: GatewayCall) -> Frame:
    """Turn away a device that waits."""
    await _decide(call, decline_device)
    return {"requestId": call.params.id, "deviceId": call.params.id}


async def _decide(call: GatewayCall, verb: Callable[..., Any]) -> Any:
    platform, by = call.client.platform, call.client.visitor.name
    decided = await platform.database.write(partial(verb, vault=platform.vault, id_=call.params.id, by=by))
    platform.signals.wake(JOBS)
    return decided


async def pair_remove(call: GatewayCall) -> Frame:
    """Forget a device and its token."""
    await _decide(call, remove_device)
    return {"deviceId": call.params.id, "removed": True}


async def token_rotate(call: GatewayCall) -> Frame:
    """Give a device another token. It is shown to the device itself alone."""
    platform, id_ = call.client.platform, call.params.id
    row: Any = await platform.database.read(partial(require_device, id_=id_))
    told = {"deviceId": id_, "role": "operator", "scopes": row.scopes.split(), "rotatedAtMs": now_ms()}
    if call.client.credential.device != id_:
        await platform.database.write(partial(revoke_device_token, id_=id_))
        return told
    return {**told, "token": await platform.database.write(partial(new_device_token, id_=id_))}


async def token_revoke(call: GatewayCall) -> Frame:
    """Let a device's token count no longer."""
    await call.client.platform.database.write(partial(revoke_device_token, id_=call.params.id))
    return {"deviceId": call.params.id, "role": "operator", "revokedAtMs": now_ms()}


METHODS: dict[str, Method] = {
    "device.pair.list": Method(pair_list, NoParams, PAIRING),
    "device.pair.approve": Method(pair_approve, RequestParams, PAIRING, audited=True),
    "device.pair.reject": Method(pair_reject, RequestParams, PAIRING, audited=True),
    "device.pair.remove": Method(pair_remove, DeviceParams, PAIRING, audited=True),
    "device.token.rotate": Method(token_rotate, DeviceParams, PAIRING, audited=True),
    "device.token.revoke": Method(token_revoke, DeviceParams, PAIRING, audited=True),
}
