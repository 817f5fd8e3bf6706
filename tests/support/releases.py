"""Keys and small source trees for releases of the tests."""

from __future__ import annotations

import marshal
import struct
from importlib.util import MAGIC_NUMBER, cache_from_source
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


def compiled_place(source: Path) -> Path:
    """Where Python keeps what it compiled of a file."""
    return Path(cache_from_source(str(source)))


def plant_compiled(source: Path, program: str) -> None:
    """Have Python run a program in place of a file: it looks at the time and the size of the file alone."""
    facts = source.stat()
    head = struct.pack("<3I", 0, int(facts.st_mtime), facts.st_size)
    place = compiled_place(source)
    place.parent.mkdir(exist_ok=True)
    place.write_bytes(MAGIC_NUMBER + head + marshal.dumps(compile(program, str(source), "exec")))


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
