"""Keys for releases of the tests."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey


def write_key(place: Path) -> Path:
    """A new private key, with its public one beside it."""
    private = Ed25519PrivateKey.generate()
    form = serialization.PrivateFormat.PKCS8
    place.write_bytes(private.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    public = private.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    place.with_suffix(".pub").write_bytes(public)
    return place
