"""Where control directories live: on a tmpfs, for they hold FIFOs and files written with every command."""

from __future__ import annotations

import os
import shutil
import tempfile
from pathlib import Path

from gofer_sandbox.errors import StartFailed

_PLACES = ("/dev/shm", "/run", tempfile.gettempdir())  # noqa: S108 whose it is, is looked at


def directory() -> Path:
    """This user's runtime directory; made on the first writable place, a tmpfs where there is one."""
    name = f"gofer-sandbox-{os.geteuid()}"
    for place in _PLACES:
        path = Path(place, name)
        try:
            path.mkdir(mode=0o711, exist_ok=True)
        except OSError:
            continue
        status = path.lstat()
        if status.st_uid == os.geteuid() and not path.is_symlink() and status.st_mode & 0o022 == 0:
            return path
    raise StartFailed(f"no writable directory for control files; tried {', '.join(_PLACES)}")


def make_control(base: Path, session: str, gid: int) -> Path:
    """A control directory the session can read but nobody else on the machine."""
    control = base / session
    control.mkdir(mode=0o700)
    if os.geteuid() == 0:
        os.chown(control, 0, gid)
        control.chmod(0o750)
    return control


def remove_control(control: Path) -> None:
    """Remove a control directory, whatever is left of it."""
    shutil.rmtree(control, ignore_errors=True)
