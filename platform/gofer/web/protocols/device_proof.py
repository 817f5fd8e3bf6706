"""Proof that a client of OpenClaw's gateway protocol holds the key of its device.

A device has a key of Ed25519, and its id is a hash of the public half. It signs the nonce of the challenge and
what it asks for, so that a proof is good for one connection, one token and two minutes.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import time

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from gofer.web.protocols.gateway_frames import ConnectParams, DeviceProof, GatewayError, invalid

MAX_AGE = 120.0
"""Seconds that a signature may be old, or in the future."""


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
