"""The keys that releases are signed with: Ed25519, and which of them are trusted here."""

from __future__ import annotations

import base64
import binascii
import contextlib
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cryptography.exceptions import InvalidSignature

from gofer.errors import NotFound
from gofer.releases.wheel import ReleaseRefused
from gofer_supervisor.home import Home

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

# The library's keys are loaded where they are used: a server seldom sees one, and they are 0.8 MiB.

SIGNED = b"gofer release\0"
"""The prefix of the signed bytes. Nothing else that is signed begins with it."""
TRUSTED = "trusted"
"""The directory of a home that holds the public keys."""


def sign(manifest: Mapping[str, Any], key: Path) -> dict[str, str]:
    """A signature over a manifest, by an Ed25519 key in PEM form."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

    try:
        private = serialization.load_pem_private_key(key.read_bytes(), None)
    except (OSError, ValueError, TypeError) as error:
        raise ReleaseRefused(f"{key} holds no private key in PEM form: {error}") from error
    if not isinstance(private, Ed25519PrivateKey):
        raise ReleaseRefused(
            f"{key} is no Ed25519 key. Make one: openssl genpkey -algorithm ed25519 -out {key}"
        )
    value = base64.b64encode(private.sign(_signed_bytes(manifest))).decode()
    return {"key": key_id(private.public_key()), "value": value}


def _signed_bytes(manifest: Mapping[str, Any]) -> bytes:
    plain = {name: value for name, value in manifest.items() if name != "signature"}
    return SIGNED + json.dumps(plain, sort_keys=True, separators=(",", ":")).encode()


def key_id(key: Ed25519PublicKey) -> str:
    """A short name for a public key."""
    return hashlib.sha256(key.public_bytes_raw()).hexdigest()[:16]


def trust_key(home: Home, key: Path) -> str:
    """Believe releases that are signed with this public key from now on; returns its id."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    try:
        public = serialization.load_pem_public_key(key.read_bytes())
    except (OSError, ValueError) as error:
        raise ReleaseRefused(f"{key} holds no public key in PEM form: {error}") from error
    if not isinstance(public, Ed25519PublicKey):
        raise ReleaseRefused(f"{key} is no Ed25519 key.")
    directory = Path(home.path, TRUSTED)
    directory.mkdir(mode=0o700, exist_ok=True)
    (directory / f"{key_id(public)}.pub").write_bytes(public.public_bytes_raw())
    return key_id(public)


def untrust_key(home: Home, id_: str) -> None:
    """Believe nothing any more that is signed with a key; raises NotFound."""
    if id_ not in trusted_keys(home):
        raise NotFound(f"No key {id_[:80]!r} is trusted here: gofer update trust")
    Path(home.path, TRUSTED, f"{id_}.pub").unlink()


def trusted_keys(home: Home) -> dict[str, Ed25519PublicKey]:
    """The keys that releases may be signed with, by id. A file that holds no key is none."""
    from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

    found: dict[str, Ed25519PublicKey] = {}
    for place in Path(home.path, TRUSTED).glob("*.pub"):
        with contextlib.suppress(ValueError):
            key = Ed25519PublicKey.from_public_bytes(place.read_bytes())
            found[key_id(key)] = key
    return found


def check_signature(home: Home, manifest: Mapping[str, Any]) -> str:
    """The id of the trusted key that signed a manifest; raises ReleaseRefused."""
    signature = manifest.get("signature")
    if not isinstance(signature, dict):
        raise ReleaseRefused("The release is not signed. If you know where it is from: --unsigned")
    key = trusted_keys(home).get(str(signature.get("key")))
    if key is None:
        raise ReleaseRefused(
            f"The release is signed with the key {str(signature.get('key'))[:16]}, which is not trusted here. "
            "If you know whose it is: gofer update trust KEY.pem"
        )
    try:
        key.verify(base64.b64decode(str(signature.get("value")), validate=True), _signed_bytes(manifest))
    except (InvalidSignature, binascii.Error, ValueError) as error:
        raise ReleaseRefused(
            "The signature is wrong: the manifest was changed after it was signed."
        ) from error
    return str(signature["key"])
