"""The system calls that Python does not offer, or not for one thread alone, through ctypes."""

from __future__ import annotations

import ctypes
import os
import platform
import signal
import struct
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_IN_ROOT = 0x10

PROC_SUPER_MAGIC = 0x9FA0

_SYS_OPENAT2, _SYS_PIDFD_GETFD, _SYS_QUOTACTL_FD = 437, 438, 443  # the same on every architecture
# glibc changes every thread of the process; only the bare calls change this one alone.
_SYS_SETRESUID = {"x86_64": 117, "aarch64": 147, "riscv64": 147, "ppc64le": 164, "s390x": 208}
_SYS_SETRESGID = {"x86_64": 119, "aarch64": 149, "riscv64": 149, "ppc64le": 169, "s390x": 210}
_SYS_SETGROUPS = {"x86_64": 116, "aarch64": 159, "riscv64": 159, "ppc64le": 81, "s390x": 206}

_PR_SET_CHILD_SUBREAPER, _PR_GET_CHILD_SUBREAPER = 36, 37
_PR_CAP_AMBIENT = 47
_PR_CAP_AMBIENT_CLEAR_ALL = 4

_AT_EMPTY_PATH = 0x1000
_STATX_MNT_ID = 0x1000
_STATX_SIZE = 256
_STATX_MNT_ID_OFFSET = 144
_STATFS_SIZE = 256  # larger than any architecture's

_NO_ID = 0xFFFFFFFF  # setfsuid with it changes nothing and tells the current one

# Windows imports this too, where no name is not the program itself.
_libc = ctypes.CDLL("msvcrt" if sys.platform == "win32" else None, use_errno=True)
_adopting = threading.Lock()


@contextmanager
def closing(fd: int) -> Iterator[int]:
    """Close a descriptor at the end, whatever happens."""
    try:
        yield fd
    finally:
        os.close(fd)


def openat2(dirfd: int, path: str, flags: int, resolve: int) -> int:
    """Open a path under the kernel's own rules for what resolving it may cross."""
    how = struct.pack("QQQ", flags | os.O_CLOEXEC, 0, resolve)
    result = _libc.syscall(
        ctypes.c_long(_SYS_OPENAT2),
        ctypes.c_int(dirfd),
        ctypes.c_char_p(os.fsencode(path)),
        ctypes.c_char_p(how),
        ctypes.c_size_t(len(how)),
    )
    return _checked(result, path)


def take_descriptor(pid: int, number: int) -> int:
    """A copy of another process's descriptor; OSError when it has none, or we may not."""
    with closing(os.pidfd_open(pid)) as handle:
        return _checked(_libc.syscall(_SYS_PIDFD_GETFD, handle, number, 0), "pidfd_getfd")


def quotactl(fd: int, command: int, project: int, data: bytes) -> None:
    """Set the quota of a project on the file system that holds the open file."""
    result = _libc.syscall(_SYS_QUOTACTL_FD, fd, command, project, ctypes.c_char_p(data))
    _checked(result, "quotactl")


def filesystem_type(fd: int) -> int:
    """The magic number of the filesystem that holds the open file."""
    buffer = ctypes.create_string_buffer(_STATFS_SIZE)
    _checked(_libc.fstatfs(ctypes.c_int(fd), buffer), "fstatfs")
    return ctypes.c_long.from_buffer(buffer).value


def mount_id(fd: int) -> int:
    """Which mount the file was reached through; always 0 where the kernel is older than 5.8."""
    buffer = ctypes.create_string_buffer(_STATX_SIZE)
    result = _libc.statx(
        ctypes.c_int(fd), b"", ctypes.c_int(_AT_EMPTY_PATH), ctypes.c_uint(_STATX_MNT_ID), buffer
    )
    _checked(result, "statx")
    (found,) = struct.unpack_from("Q", buffer.raw, _STATX_MNT_ID_OFFSET)
    return int(found)


@contextmanager
def acting_as(uid: int, gid: int) -> Iterator[None]:
    """Give this thread the session's file rights; a root server would otherwise lend the sandbox its own.

    A server that is not root already runs as the session's user, and nothing changes.
    """
    if os.geteuid() != 0 or (uid, gid) == (0, 0):
        yield
        return
    groups = os.getgroups()
    try:
        _set_thread_groups([])
        _set_thread_file_id("setfsgid", gid)
        _set_thread_file_id("setfsuid", uid)  # last: it gives up the rights over other people's files
        yield
    finally:
        _set_thread_file_id("setfsuid", 0)
        _set_thread_file_id("setfsgid", os.getegid())
        _set_thread_groups(groups)


def take_place(child: int) -> bool:
    """End a child and become the parent of its children, which we then can reap; False when that is not possible."""
    before = ctypes.c_int()
    with _adopting:
        try:
            _checked(_libc.prctl(_PR_GET_CHILD_SUBREAPER, ctypes.byref(before), 0, 0, 0), "prctl")
            _checked(_libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "prctl")
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
        except OSError:
            return False
        finally:
            _libc.prctl(_PR_SET_CHILD_SUBREAPER, before.value, 0, 0, 0)
    return True


@contextmanager
def starting_as(uid: int, gid: int) -> Iterator[None]:
    """Have what this thread starts be another user's from its first instruction; only root may ask.

    The thread keeps root as its saved user, and comes back. A program cannot: executing it makes the effective
    user the saved one, and takes away every capability. Ambient capabilities alone would outlive a change of user and
    an exec, so they go first.
    """
    groups = os.getgroups()
    try:
        _checked(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "prctl")
        _set_thread_groups([])
        _set_thread_id(_SYS_SETRESGID, gid)
        _set_thread_id(_SYS_SETRESUID, uid)
        yield
    finally:
        _set_thread_id(_SYS_SETRESUID, 0)
        _set_thread_id(_SYS_SETRESGID, 0)
        _set_thread_groups(groups)


def _set_thread_file_id(call: str, number: int) -> None:
    """Check files as this user or group, in this thread only."""
    set_id = getattr(_libc, call)
    set_id(ctypes.c_uint(number))
    if set_id(ctypes.c_uint(_NO_ID)) != number:
        raise PermissionError(f"cannot act as {number} ({call})")


def _set_thread_groups(groups: Sequence[int]) -> None:
    """Replace the supplementary groups of this thread only."""
    array = (ctypes.c_uint * len(groups))(*groups)
    _checked(_libc.syscall(_here(_SYS_SETGROUPS), ctypes.c_size_t(len(groups)), array), "setgroups")


def _set_thread_id(numbers: dict[str, int], number: int) -> None:
    """Make this thread's real and effective user or group that one; the saved one stays, to come back with."""
    _checked(_libc.syscall(_here(numbers), *map(ctypes.c_uint, (number, number, _NO_ID))), "setres")


def _here(numbers: dict[str, int]) -> ctypes.c_long:
    number = numbers.get(platform.machine())
    if number is None:
        raise OSError(f"changing users is not known for the processor {platform.machine()}")
    return ctypes.c_long(number)


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)
    return result
