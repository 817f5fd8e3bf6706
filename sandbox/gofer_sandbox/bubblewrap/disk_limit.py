"""What holds a workspace to its limit besides looking: the file system itself, where the server is root.

With project quotas (ext4 and XFS, since Linux 5.14) a workspace is a project of its own, and what is made in it
inherits that. The number is kept in the directory's inode, so nothing else has to remember it. Nobody inside can change
it: the kernel refuses that in a user namespace, and the filter refuses the calls.

Without them a workspace can have a file system of its own, in a sparse file of limited size, mounted on the session's
own `workspace` directory: who adopts the session renames the directory above it, never the mount point. It is unmounted
when the session ends and mounted again when it is brought back; its files are in `workspace.img` meanwhile.
"""

from __future__ import annotations

import contextlib
import os
import random
import stat
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from gofer_sandbox import tree
from gofer_sandbox.disk import free_space
from gofer_sandbox.errors import StartFailed
from gofer_sandbox.kernel import closing, quotactl
from gofer_sandbox.limits import KIB, MIB, Limits
from gofer_sandbox.provider import IMAGE, PROJECT_QUOTA, WATCHED, Feature, Spec

_QUOTA_FIX = (
    "run the server as root and let project quotas be enforced where its data is; on ext4: tune2fs -O project,quota "
    "DEVICE while it is not mounted, then mount -o prjquota; on XFS: mount -o prjquota"
)


class DiskLimit:
    """Has the file system hold the limit of workspaces, where it can."""

    def __init__(self, images: bool) -> None:
        """`images` may be made where there are no project quotas."""
        self._images = images
        self._quota_missing: dict[int, str] = {}
        """Why there are no project quotas, by device; nothing where there are."""

    def probe(self, place: Path) -> tuple[str, Feature]:
        """What will hold the limit of the workspaces in a directory."""
        with contextlib.suppress(OSError):
            place.mkdir(parents=True, exist_ok=True)
        disk_by, why = PROJECT_QUOTA, self._without_quota(place)
        if why and self._images:
            disk_by, why = IMAGE, image_shortfall(place)
        disk_by, fix = (WATCHED, _QUOTA_FIX) if why else (disk_by, "")
        return disk_by, Feature("disk limit held by the file system", not why, why, fix)

    def hold(self, spec: Spec) -> str:
        """Have the file system hold the limit, where it can; what holds it then."""
        if spec.share:
            return held_by(spec.share.workspace.parent)
        begun = _in_image(spec.directory)
        with contextlib.suppress(OSError, ImageFailed):
            if not begun and not self._without_quota(spec.directory):
                _set_quota(spec.workspace, spec.limits)
                return PROJECT_QUOTA
            if (begun or self._images) and os.geteuid() == 0:
                _mount(spec.directory, spec.limits)
                return IMAGE
        if _in_image(spec.directory):
            raise StartFailed(
                "the image that holds the session's files cannot be mounted; is the server root?"
            )
        return WATCHED

    def _without_quota(self, place: Path) -> str:
        """Why the file system there does not hold a limit; tried once for each."""
        try:
            device = place.stat().st_dev
        except OSError as error:
            return str(error)
        if device not in self._quota_missing:
            self._quota_missing[device] = _quota_shortfall(place)
        return self._quota_missing[device]


def held_by(directory: Path) -> str:
    """What holds the disk limit of a session that lives."""
    if _in_image(directory):
        return IMAGE
    return PROJECT_QUOTA if os.geteuid() == 0 and _has_quota(directory / "workspace") else WATCHED


# Project quotas

_FIRST, _LAST = 0x40000000, 0x7FFFFFFF
"""Projects that are ours. So many that two by chance are never the same."""
_SET_QUOTA = (0x800008 << 8) | 2  # Q_SETQUOTA for projects
_GET_ATTRIBUTES, _SET_ATTRIBUTES = 0x801C581F, 0x401C5820
_ATTRIBUTES = struct.Struct("IIIII8s")
"""struct fsxattr: flags, extent size, extents, project, copy-on-write size"""
_INHERIT = 0x200
_LIMITS = struct.Struct("QQQQQQQQI4x")  # struct if_dqblk
_BLOCKS_AND_INODES = 0x1 | 0x4
_NOBODY = 65534


def _quota_shortfall(place: Path) -> str:
    """Why projects cannot be limited where that directory is; nothing when they can. Tried for real: as another user,
    for root may exceed every quota."""
    if os.geteuid() != 0:
        return "the server is not root"
    try:
        with tempfile.TemporaryDirectory(prefix=".quota-", dir=place, ignore_cleanup_errors=True) as trial:
            os.chown(trial, _NOBODY, _NOBODY)
            free = free_space(place)
            _set_quota(Path(trial), Limits(disk=64 * KIB))
            write = ["dd", "if=/dev/zero", "of=x", f"bs={MIB}", "count=1", "status=none"]
            result = subprocess.run(
                write, cwd=trial, user=_NOBODY, group=_NOBODY, extra_groups=[], env={}, capture_output=True
            )
        # XFS says that there is no space left.
        bound = b"quota exceeded" in result.stderr or (b"No space left" in result.stderr and free > 8 * MIB)
        return "" if bound else "a quota was set, but it does not bind"
    except OSError as error:
        return f"{error.strerror} (project quotas of {place})"


def _set_quota(workspace: Path, limits: Limits) -> None:
    """Hold a workspace to its limits. What is in it already becomes part of its project."""
    with closing(tree.open_directory(workspace)) as fd:
        project = _project(fd)
        if not _FIRST <= project <= _LAST:
            project = random.SystemRandom().randint(_FIRST, _LAST)
            _join(workspace, project)
            _set_project(fd, project)
        blocks, files = -(-limits.disk // KIB), limits.files  # the kernel counts in KiB here
        data = _LIMITS.pack(blocks, blocks, 0, files, files, 0, 0, 0, _BLOCKS_AND_INODES)
        quotactl(fd, _SET_QUOTA, project, data)


def _has_quota(workspace: Path) -> bool:
    """Whether a workspace was made a project of ours."""
    try:
        with closing(tree.open_directory(workspace)) as fd:
            return _FIRST <= _project(fd) <= _LAST
    except OSError:
        return False


def _join(workspace: Path, project: int) -> None:
    """Nothing is opened that is no file or directory; a link takes no space of its own."""
    for directory, _, others in tree.walk(workspace):
        _set_project(directory, project)
        for name in others:
            with contextlib.suppress(OSError):
                flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
                with closing(os.open(name, flags, dir_fd=directory)) as fd:
                    _set_project(fd, project)


def _attributes(fd: int) -> list[Any]:
    import fcntl  # not there on every system that may import this

    return list(_ATTRIBUTES.unpack(fcntl.ioctl(fd, _GET_ATTRIBUTES, bytes(_ATTRIBUTES.size))))


def _project(fd: int) -> int:
    return int(_attributes(fd)[3])


def _set_project(fd: int, project: int) -> None:
    import fcntl

    values = _attributes(fd)
    values[3] = project
    if stat.S_ISDIR(os.fstat(fd).st_mode):
        values[0] |= _INHERIT  # which ext4 refuses for a file
    fcntl.ioctl(fd, _SET_ATTRIBUTES, _ATTRIBUTES.pack(*values))


# Images

NAME = "workspace.img"
_PATH = "/usr/sbin:/usr/bin:/sbin:/bin"
_INODE, _BYTES_PER_INODE = 256, 4 * KIB
_JOURNAL = 4
"""MiB, the least that there is."""


class ImageFailed(Exception):
    """What `mkfs.ext4` or `mount` said."""


def image_shortfall(place: Path) -> str:
    """Why images cannot be used where that directory is; nothing when they can. Tried for real."""
    if os.geteuid() != 0:
        return "the server is not root"
    try:
        with tempfile.TemporaryDirectory(prefix=".image-", dir=place, ignore_cleanup_errors=True) as trial:
            workspace = Path(trial, "workspace")
            workspace.mkdir()
            _mount(workspace.parent, Limits(disk=4 * MIB))
            unmount(workspace)
    except (ImageFailed, OSError) as error:
        return str(error)
    return ""


def _mount(directory: Path, limits: Limits) -> None:
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


def _in_image(directory: Path) -> bool:
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
