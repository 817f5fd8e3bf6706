"""Project quotas: the file system itself holds a workspace to its limit. For root, on ext4 and XFS, since Linux 5.14.

A workspace is a project of its own, and what is made in it inherits that. The number is kept in the directory's
inode, so nothing else has to remember it. Nobody inside can change it: the kernel refuses that in a user namespace,
and the filter refuses the calls.
"""

from __future__ import annotations

import contextlib
import os
import random
import shutil
import stat
import struct
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from gofer_sandbox import tree
from gofer_sandbox.disk import free_space
from gofer_sandbox.kernel import closing, quotactl
from gofer_sandbox.limits import KIB, MIB, Limits

FIRST, LAST = 0x40000000, 0x7FFFFFFF
"""Projects that are ours. So many that two by chance are never the same."""
_SET_QUOTA = (0x800008 << 8) | 2  # Q_SETQUOTA for projects
_GET_ATTRIBUTES, _SET_ATTRIBUTES = 0x801C581F, 0x401C5820
_ATTRIBUTES = struct.Struct("IIIII8s")
"""struct fsxattr: flags, extent size, extents, project, copy-on-write size"""
_INHERIT = 0x200
_LIMITS = struct.Struct("QQQQQQQQI4x")  # struct if_dqblk
_BLOCKS_AND_INODES = 0x1 | 0x4
_NOBODY = 65534


def shortfall(place: Path) -> str:
    """Why projects cannot be limited where that directory is; nothing when they can. Tried for real: as another user,
    for root may exceed every quota."""
    if os.geteuid() != 0:
        return "the server is not root"
    trial = Path(tempfile.mkdtemp(prefix=".quota-", dir=place))
    try:
        os.chown(trial, _NOBODY, _NOBODY)
        free = free_space(place)
        apply(trial, Limits(disk=64 * KIB))
        write = ["dd", "if=/dev/zero", "of=x", f"bs={MIB}", "count=1", "status=none"]
        result = subprocess.run(
            write, cwd=trial, user=_NOBODY, group=_NOBODY, extra_groups=[], env={}, capture_output=True
        )
        # XFS says that there is no space left.
        bound = b"quota exceeded" in result.stderr or (b"No space left" in result.stderr and free > 8 * MIB)
        return "" if bound else "a quota was set, but it does not bind"
    except OSError as error:
        return f"{error.strerror} (project quotas of {place})"
    finally:
        shutil.rmtree(trial, ignore_errors=True)


def apply(workspace: Path, limits: Limits) -> None:
    """Hold a workspace to its limits. What is in it already becomes part of its project."""
    with closing(tree.open_directory(workspace)) as fd:
        project = _project(fd)
        if not FIRST <= project <= LAST:
            project = random.SystemRandom().randint(FIRST, LAST)
            _join(workspace, project)
            _set_project(fd, project)
        _limit(fd, project, limits)


def applies(workspace: Path) -> bool:
    """Whether a workspace was made a project of ours."""
    try:
        with closing(tree.open_directory(workspace)) as fd:
            return FIRST <= _project(fd) <= LAST
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


def _limit(fd: int, project: int, limits: Limits) -> None:
    """The kernel counts in KiB here."""
    blocks, files = -(-limits.disk // KIB), limits.files
    data = _LIMITS.pack(blocks, blocks, 0, files, files, 0, 0, 0, _BLOCKS_AND_INODES)
    quotactl(fd, _SET_QUOTA, project, data)
