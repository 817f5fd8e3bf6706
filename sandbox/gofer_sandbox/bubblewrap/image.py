"""A file system of its own for each workspace, in a sparse file of limited size. For root, where there are no quotas.

It is mounted on the session's own `workspace` directory: who adopts the session renames the directory above it, never
the mount point. It is unmounted when the session ends and mounted again when it is brought back; its files are in
`workspace.img` meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import subprocess
import tempfile
from pathlib import Path

from gofer_sandbox import tree
from gofer_sandbox.kernel import closing
from gofer_sandbox.limits import KIB, MIB, Limits

NAME = "workspace.img"
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_INODE, _BYTES_PER_INODE = 256, 4 * KIB
_JOURNAL = 4
"""MiB, the least that there is."""


class ImageFailed(Exception):
    """What `mkfs.ext4` or `mount` said."""


def shortfall(place: Path) -> str:
    """Why images cannot be used where that directory is; nothing when they can. Tried for real."""
    if os.geteuid() != 0:
        return "the server is not root"
    try:
        with tempfile.TemporaryDirectory(prefix=".image-", dir=place, ignore_cleanup_errors=True) as trial:
            workspace = Path(trial, "workspace")
            workspace.mkdir()
            mount(workspace.parent, Limits(disk=4 * MIB))
            unmount(workspace)
    except (ImageFailed, OSError) as error:
        return str(error)
    return ""


def mount(directory: Path, limits: Limits) -> None:
    """Have the workspace be in an image. ImageFailed where it holds something that is not."""
    image, workspace = directory / NAME, directory / "workspace"
    if os.path.ismount(workspace):
        return
    fresh = not image.exists()
    if fresh:
        if any(workspace.iterdir()):
            raise ImageFailed("the workspace was begun without an image")
        _make(image, limits)
    try:
        _run("mount", "-t", "ext4", "-o", "loop,nodev,nosuid,discard", str(image), str(workspace))
    except ImageFailed:
        if fresh:
            image.unlink()
        raise
    if fresh:
        tree.remove(workspace / "lost+found")
        workspace.chmod(0o700)


def _make(image: Path, limits: Limits) -> None:
    """As large as the limit and what the file system needs for itself; whole, or not there."""
    inodes = max(16, min(limits.files, limits.disk // _BYTES_PER_INODE))
    new = image.with_suffix(".new")
    with contextlib.suppress(FileNotFoundError):
        new.unlink()
    with closing(os.open(new, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)) as fd:
        os.truncate(fd, limits.disk + inodes * _INODE + _JOURNAL * MIB)
    options = "lazy_itable_init=1,lazy_journal_init=1,nodiscard"
    sizes = ["-m", "0", "-N", str(inodes), "-J", f"size={_JOURNAL}"]
    _run("mkfs.ext4", "-q", "-F", *sizes, "-E", options, str(new))
    new.rename(image)


def applies(directory: Path) -> bool:
    """Whether a session's workspace is in an image."""
    return (directory / NAME).exists()


def unmount_device(device: int) -> None:
    """Unmount an image wherever its session's directory is by now."""
    name = f"{os.major(device)}:{os.minor(device)}"
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        fields = line.split()
        if fields[2] == name:
            unmount(Path(fields[4].encode().decode("unicode_escape")))


def unmount(workspace: Path) -> None:
    """Lazily, for who looks at the files just now must not keep a session from ending."""
    if os.path.ismount(workspace):
        with contextlib.suppress(ImageFailed):
            _run("umount", "-l", str(workspace))


def _run(*command: str) -> None:
    try:
        result = subprocess.run(command, env={"PATH": _PATH}, capture_output=True, text=True)
    except OSError as error:
        raise ImageFailed(f"{command[0]}: {error.strerror}") from error
    if result.returncode:
        raise ImageFailed(f"{command[0]}: {result.stderr.strip() or result.returncode}")
