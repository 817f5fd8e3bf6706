"""Tries a release where it can do no harm: in a sandbox without network, with a copy of the store but not its key."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from gofer.releases.wheel import ReleaseRefused
from gofer.store.backup import copy_database
from gofer_sandbox import SandboxError
from gofer_sandbox.bubblewrap import arguments, binary
from gofer_supervisor.home import Release

TRIAL_TIMEOUT = 900.0
MAX_MEMORY = 4 * 1024 * 1024
"""Kibibytes of address space for each process."""
PART_OF_SANDBOX = ("/usr", "/bin", "/lib", "/lib64", "/etc")
"""What every sandbox shows already."""
IN_LIMITS = f'ulimit -v {MAX_MEMORY}; exec "$@"'


def try_release(release: Release, store: Path | None, *, timeout: float = TRIAL_TIMEOUT) -> str:
    """Run the release's own check; returns what it found. Raises ReleaseRefused when it fails, or cannot be run.

    The interpreter may be where only its owner can go. So the release runs as our own user, without privileges and in
    namespaces of its own, and not in a session of another user.
    """
    with tempfile.TemporaryDirectory(prefix="gofer-release-") as folder:
        workspace = Path(folder, "workspace")
        workspace.mkdir()
        checking = [release.python, "-m", "gofer", "selfcheck"]
        if store is not None and store.exists():
            copy_database(store, workspace / "copy.db")
            checking += ["--database", "copy.db"]
        command = [*_sandbox(release, Path(folder)), "/bin/sh", "-c", IN_LIMITS, "sh", *checking]
        try:
            ended = subprocess.run(command, capture_output=True, text=True, errors="replace", timeout=timeout)
        except subprocess.TimeoutExpired as error:
            raise ReleaseRefused(f"The release did not check itself in {timeout:g} seconds.") from error
        except OSError as error:
            raise ReleaseRefused(f"The release could not be tried in a sandbox: {error}") from error
    if ended.returncode != 0:
        words = [line for line in f"{ended.stdout}\n{ended.stderr}".splitlines() if line.strip()]
        raise ReleaseRefused(f"The release failed its own check: {(words or ['it said nothing'])[-1][:500]}")
    return "; ".join(line for line in ended.stdout.splitlines() if line.strip())


def _sandbox(release: Release, folder: Path) -> list[str]:
    """The command line of bubblewrap: no network, no privileges, and nothing of the host but what a release needs."""
    try:
        bwrap, etc = binary.find(), arguments.make_etc(folder)
    except (SandboxError, OSError) as error:
        raise ReleaseRefused(f"A release is tried in a sandbox, which cannot be had here: {error}") from error
    isolation = [option for option in arguments.isolation() if option != "--as-pid-1"]
    shown = [part for place in _needed(release) for part in ("--ro-bind", str(place), str(place))]
    environment = {
        **arguments.ENVIRONMENT,
        "PYTHONPATH": os.pathsep.join(release.path),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    return [
        *(str(bwrap), *isolation, "--die-with-parent", *arguments.system(etc), *shown),
        *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),  # noqa: S108 - a path inside
        *("--bind", str(folder / "workspace"), arguments.HOME, "--chdir", arguments.HOME),
        *(part for name, value in environment.items() for part in ("--setenv", name, value)),
    ]


def _needed(release: Release) -> list[Path]:
    """What a release needs to see beside its own files: its interpreter and the packages that it uses."""
    places = [*release.path, str(Path(release.python).parent.parent), sys.base_prefix]
    if release.python == sys.executable:
        places += [place for place in sys.path if place.startswith("/") and Path(place).is_dir()]
    found: list[Path] = []
    for place in map(Path, dict.fromkeys(places)):
        known = any(place.is_relative_to(other) for other in [*found, *map(Path, PART_OF_SANDBOX)])
        if place.exists() and not known:
            found.append(place)
    return found
