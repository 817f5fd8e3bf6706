"""Keys and small source trees for releases of the tests."""

from __future__ import annotations

from pathlib import Path

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

PROJECT = """
[project]
name = "gofer"
requires-python = ">=3.11"
dependencies = []
scripts = {}
entry-points = {}
[tool.hatch.version]
path = "platform/gofer/__init__.py"
[tool.hatch.build.targets.wheel]
packages = ["platform/gofer"]
force-include = {"requirements.lock" = "gofer/requirements.lock"}
"""
LOCK = Path(__file__).parents[2] / "requirements.lock"


def small_source(top: Path, version: str, program: str = "") -> Path:
    """A source tree of a release with little in it, which is quick to build."""
    package = top / "platform" / "gofer"
    package.mkdir(parents=True)
    (top / "pyproject.toml").write_text(PROJECT)
    (top / "requirements.lock").write_bytes(LOCK.read_bytes())
    (package / "__init__.py").write_text(f'__version__ = "{version}"\n')
    (package / "__main__.py").write_text(program)
    return top


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
