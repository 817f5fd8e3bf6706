"""Tries a release where it can do no harm: in a sandbox without network, with a copy of the store but not its key."""

from __future__ import annotations

import contextlib
import os
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from gofer.releases.wheel import ReleaseRefused
from gofer.store.backup import copy_database
from gofer_sandbox import SandboxError
from gofer_sandbox.bubblewrap import arguments, binary
from gofer_supervisor.home import Release

TRIAL_TIMEOUT = 900.0
BUILD_TIMEOUT, COMPILE_TIMEOUT = 120.0, 300.0
LOOK_EVERY = 0.25
"""Seconds between two looks whether to go on."""
MAX_MEMORY = 4 * 1024 * 1024
"""Kibibytes of address space for each process."""
MAX_DISK = 1024 * 1024 * 1024
"""Bytes of the disk that may go while a release is tried; at most half of what is free."""
PART_OF_SANDBOX = ("/usr", "/bin", "/lib", "/lib64", "/etc")
"""What every sandbox shows already."""
IN_LIMITS = f'test -e "$0" || exit 1; ulimit -v {MAX_MEMORY}; exec "$@"'
"""Where a release's own files could not be seen, one that is installed would be run in its place."""


def try_release(
    release: Release,
    store: Path | None,
    *,
    timeout: float = TRIAL_TIMEOUT,
    stopping: threading.Event | None = None,
) -> str:
    """Run the release's own check, then compile it; returns what the check found. Raises ReleaseRefused when it fails,
    or cannot be run.

    The interpreter may be where only its owner can go. So the release runs as our own user, without privileges and in
    namespaces of its own, and not in a session of another user.
    """
    with tempfile.TemporaryDirectory(prefix="gofer-release-") as folder:
        workspace = Path(folder, "workspace")
        workspace.mkdir()
        checking = ["selfcheck"]
        if store is not None and store.exists():
            copy_database(store, workspace / "copy.db")
            checking += ["--database", "copy.db"]
        found = _run_inside(release, Path(folder), checking, timeout, stopping)
    compile_release(release)
    return "; ".join(line for line in found.splitlines() if line.strip())


def compile_release(release: Release) -> None:
    """Compile a release before it is staged, so that nobody waits for it when it starts. Nothing is lost if that
    fails."""
    command = [release.python, "-I", "-B", "-m", "compileall", "-q", *release.path]
    with contextlib.suppress(OSError, subprocess.TimeoutExpired):
        subprocess.run(command, capture_output=True, timeout=COMPILE_TIMEOUT)


def build_in_sandbox(release: Release, folder: Path, stopping: threading.Event | None = None) -> Path:
    """Have the release that runs build the source tree in `workspace/source` of a folder; returns the wheel, which has
    its manifest beside it. Raises ReleaseRefused."""
    _run_inside(release, folder, ["update", "build", "source", "--to", "dist"], BUILD_TIMEOUT, stopping)
    return next((folder / "workspace" / "dist").glob("*.whl"))


def _run_inside(
    release: Release,
    folder: Path,
    arguments: list[str],
    timeout: float,
    stopping: threading.Event | None,
) -> str:
    """Run `gofer` of a release in a sandbox with a folder's workspace; returns what it said."""
    sandboxed = [*_sandbox(release, folder), "/bin/sh", "-c", IN_LIMITS, (*release.path, "/")[0]]
    command = [*sandboxed, *release.command(*arguments)]
    what = f"`gofer {' '.join(arguments[:2])}`"
    give_up, free = time.monotonic() + timeout, shutil.disk_usage(folder).free
    room = min(MAX_DISK, free // 2)
    try:
        running = subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, errors="replace"
        )
    except OSError as error:
        raise ReleaseRefused(f"The release could not be tried in a sandbox: {error}") from error
    with running:
        while True:
            try:
                said, wrong = running.communicate(timeout=LOOK_EVERY)
                break
            except subprocess.TimeoutExpired:
                if stopping is not None and stopping.is_set():
                    why = "was stopped"
                elif free - shutil.disk_usage(folder).free > room:
                    why = f"used more than {room // 1_000_000} MB of the disk, and was ended"
                elif time.monotonic() >= give_up:
                    why = f"did not end in {timeout:g} seconds"
                else:
                    continue
                running.kill()
                raise ReleaseRefused(f"{what} of the release {why}.") from None
    if running.returncode != 0:
        words = [line for line in f"{said}\n{wrong}".splitlines() if line.strip()]
        raise ReleaseRefused(f"The release failed its own check: {(words or ['it said nothing'])[-1][:500]}")
    return str(said)


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
        *(str(bwrap), *isolation, "--die-with-parent", *arguments.system(etc)),
        *("--proc", "/proc", "--dev", "/dev", "--tmpfs", "/tmp"),  # noqa: S108 - a path inside
        *shown,  # last, since a release may lie below one of these
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
