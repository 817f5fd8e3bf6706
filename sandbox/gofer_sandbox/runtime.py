"""What a session takes of the machine: a control directory, and a user.

Control directories are on a tmpfs, for they hold FIFOs and files written with every command. The user is one of its own
when the server is root, else the server's.
"""

from __future__ import annotations

import os
import random
import shutil
import tempfile
from pathlib import Path

from gofer_sandbox import tree
from gofer_sandbox.errors import StartFailed
from gofer_sandbox.provider import Spec
from gofer_sandbox.records import Reference

_PLACES = ("/dev/shm", "/run", tempfile.gettempdir())  # noqa: S108 whose it is, is looked at
FIRST, LAST = 2_000_000_000, 2_000_065_535
"""Far from what systems, containers and subordinate ranges give out."""


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


def claim(base: Path, spec: Spec) -> tuple[int, int]:
    """The session's user and group id."""
    if os.geteuid() != 0:
        return os.geteuid(), os.getegid()
    if spec.share:
        return spec.share.uid, spec.share.gid
    wanted = spec.previous.uid if spec.previous else spec.workspace.stat().st_uid
    uid = _free_id(base / "uids", spec.id, wanted)
    return uid, uid


def _free_id(directory: Path, session: str, wanted: int) -> int:
    """An id no living session has; the wanted one if it is free. The claim is a file, so it is atomic."""
    if FIRST <= wanted <= LAST and _take(directory, session, wanted):
        return wanted
    for _ in range(1000):
        uid = random.SystemRandom().randint(FIRST, LAST)
        if _take(directory, session, uid):
            return uid
    raise StartFailed("no free user id was found for the session; are thousands of sessions left over?")


def _take(directory: Path, session: str, uid: int) -> bool:
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
    try:
        fd = os.open(f"{directory}/{uid}", flags, 0o600)
    except FileExistsError:
        return _holder(directory, uid) == session
    except FileNotFoundError:
        directory.mkdir(exist_ok=True, mode=0o700)
        return _take(directory, session, uid)
    os.write(fd, session.encode())
    os.close(fd)
    return True


def _holder(directory: Path, uid: int) -> str:
    try:
        return (directory / str(uid)).read_text()
    except OSError:
        return ""


def release(session: str, reference: Reference) -> None:
    """Remove the control directory of a sandbox that has ended, and give its id back; if that is not known, whichever
    the session has claimed."""
    if not reference.control:
        return
    control = Path(reference.control)
    remove_control(control)
    directory, uid = control.parent / "uids", reference.uid
    claims = [directory / str(uid)] if uid >= 0 else list(directory.glob("*"))
    for claim_file in claims if os.geteuid() == 0 else ():
        if claim_file.name.isdigit() and _holder(directory, int(claim_file.name)) == session:
            claim_file.unlink(missing_ok=True)


def hand_over(workspace: Path, uid: int) -> None:
    """Make everything in a workspace belong to an id, when we are root; links themselves, never what they point at."""
    if os.geteuid() != 0 or workspace.stat().st_uid == uid:
        return
    os.chown(workspace, uid, uid, follow_symlinks=False)
    for fd, directories, others in tree.walk(workspace):
        for name in (*directories, *others):
            os.chown(name, uid, uid, dir_fd=fd, follow_symlinks=False)
