"""The system calls that Python does not offer, or not for one thread alone, through ctypes."""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys

RESOLVE_NO_MAGICLINKS = 0x02
RESOLVE_NO_SYMLINKS = 0x04
RESOLVE_IN_ROOT = 0x10

PROC_SUPER_MAGIC = 0x9FA0

_SYS_OPENAT2 = 437  # the same on every architecture
# glibc changes every thread of the process; only the bare calls change this one alone.
_SYS_SETRESUID = {"x86_64": 117, "aarch64": 147, "riscv64": 147, "ppc64le": 164, "s390x": 208}
_SYS_SETRESGID = {"x86_64": 119, "aarch64": 149, "riscv64": 149, "ppc64le": 169, "s390x": 210}
_SYS_SETGROUPS = {"x86_64": 116, "aarch64": 159, "riscv64": 159, "ppc64le": 81, "s390x": 206}

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


def _checked(result: int, what: str) -> int:
    if result < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code), what)
    return result


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


def filesystem_type(fd: int) -> int:
    """The magic number of the filesystem that holds the open file."""
    buffer = ctypes.create_string_buffer(_STATFS_SIZE)
    _checked(_libc.fstatfs(ctypes.c_int(fd), buffer), "fstatfs")
    return ctypes.c_long.from_buffer(buffer).value


def mount_id(fd: int) -> int | None:
    """Which mount the file was reached through, or None where the kernel is older than 5.8."""
    buffer = ctypes.create_string_buffer(_STATX_SIZE)
    result = _libc.statx(
        ctypes.c_int(fd), b"", ctypes.c_int(_AT_EMPTY_PATH), ctypes.c_uint(_STATX_MNT_ID), buffer
    )
    _checked(result, "statx")
    (mask,) = struct.unpack_from("I", buffer.raw, 0)
    if not mask & _STATX_MNT_ID:
        return None
    (found,) = struct.unpack_from("Q", buffer.raw, _STATX_MNT_ID_OFFSET)
    return int(found)


def set_thread_fsuid(uid: int) -> None:
    """Check files as this user, in this thread only."""
    _libc.setfsuid(ctypes.c_uint(uid))
    if _libc.setfsuid(ctypes.c_uint(_NO_ID)) != uid:
        raise PermissionError(f"cannot act as uid {uid}")


def set_thread_fsgid(gid: int) -> None:
    """Check files as this group, in this thread only."""
    _libc.setfsgid(ctypes.c_uint(gid))
    if _libc.setfsgid(ctypes.c_uint(_NO_ID)) != gid:
        raise PermissionError(f"cannot act as gid {gid}")


def set_thread_groups(groups: list[int]) -> None:
    """Replace the supplementary groups of this thread only."""
    array = (ctypes.c_uint * len(groups))(*groups)
    number = _call(_SYS_SETGROUPS, "groups")
    _checked(_libc.syscall(number, ctypes.c_size_t(len(groups)), array), "setgroups")


def set_thread_gid(gid: int) -> None:
    """Make this thread's real and effective group that one; the saved one stays, to come back with."""
    number = _call(_SYS_SETRESGID, "groups")
    _checked(_libc.syscall(number, *map(ctypes.c_uint, (gid, gid, _NO_ID))), "setresgid")


def set_thread_uid(uid: int) -> None:
    """Make this thread's real and effective user that one; the saved one stays, to come back with."""
    number = _call(_SYS_SETRESUID, "users")
    _checked(_libc.syscall(number, *map(ctypes.c_uint, (uid, uid, _NO_ID))), "setresuid")


def drop_thread_ambient() -> None:
    """Take this thread's ambient capabilities, which alone would outlive a change of user and an exec."""
    _checked(_libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0), "prctl")


def _call(numbers: dict[str, int], what: str) -> ctypes.c_long:
    number = numbers.get(platform.machine())
    if number is None:
        raise OSError(f"changing {what} is not known for the processor {platform.machine()}")
    return ctypes.c_long(number)
