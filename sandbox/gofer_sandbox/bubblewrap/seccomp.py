"""The system call filter, as the classic BPF program the kernel takes. No library is needed to write it.

What is refused: everything that makes or enters namespaces and mounts, loads code into the kernel, reaches
keys, other machines (vsock) or the host's hardware, and injecting input into a terminal. io_uring and
userfaultfd are refused for their record of holes. ptrace is allowed: debuggers are useful, and PID 1 inside
is under the same filter as whoever traces it.

What one process could do to a later command is refused, too: to lower the limits of the shell, which then could not
open the command's file, to hold a file by a lease, for which the server would wait when it opens it, and to have a
socket give nothing until it holds more: the shell's channel would, to whoever reads it, for ever.

A file's project, by which a quota counts, cannot be changed. Where no quota counts at all, space cannot be
taken without writing: one call of fallocate takes gigabytes in milliseconds, faster than anybody can look.
"""

from __future__ import annotations

import errno
import platform
import struct
import sys
from dataclasses import dataclass
from functools import cache

_LOAD, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE = 0, 4
_ALLOW, _FAIL, _KILL = 0x7FFF0000, 0x00050000, 0x80000000
_X32 = 0x40000000
_NAMESPACES = 0x7E020080
"""Every CLONE_NEW flag; the lowest, for time namespaces, overlaps the signal number only in old clone."""
_NAMESPACES_OF_CLONE = _NAMESPACES & ~0xFF
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C
_SET_FLAGS = (0x40086602, 0x40046602, 0x401C5820)
"""FS_IOC_SETFLAGS, the same as 32-bit programs say it, and FS_IOC_FSSETXATTR: they change a file's project, or whether
new files inherit it."""
_RESERVE = (0x40305828, 0x4030582A, 0x40305839, 0x4030580A, 0x40305824)
"""FS_IOC_RESVSP, FS_IOC_RESVSP64, FS_IOC_ZERO_RANGE and what XFS had before: fallocate by another name."""
_PUNCH_HOLE = 0x03
"""FALLOC_FL_PUNCH_HOLE and FALLOC_FL_KEEP_SIZE, which only go together: the one mode that gives space back."""
_LEASES = (1024, 1039)
"""F_SETLEASE and F_SETDELEG."""
_SOL_SOCKET, _SO_RCVLOWAT = 1, 18
_FAMILIES = (1, 2, 10, 16)
"""Unix, IPv4, IPv6 and netlink sockets; above all not vsock, which no network namespace confines."""
_PERSONALITIES = (0x0, 0x0008, 0x20000, 0x20008, 0xFFFFFFFF)
REFUSED_EVERYWHERE = {
    "open_tree": 428, "move_mount": 429, "fsopen": 430, "fsconfig": 431, "fsmount": 432, "fspick": 433,
    "io_uring_setup": 425, "io_uring_enter": 426, "io_uring_register": 427, "mount_setattr": 442,
    "pidfd_getfd": 438, "quotactl_fd": 443, "open_tree_attr": 467, "file_setattr": 469,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Machine:
    """One processor architecture: its audit number and the numbers of the calls that are checked or refused."""

    audit: int
    checked: dict[str, int]
    refused: dict[str, int]


X86_64 = Machine(
    audit=0xC000003E,
    checked={
        "clone": 56, "clone3": 435, "fallocate": 285, "fcntl": 72, "ioctl": 16, "prlimit": 302, "socket": 41,
        "socketpair": 53, "personality": 135, "setsockopt": 54,
    },
    refused={
        "syslog": 103, "vhangup": 153, "modify_ldt": 154, "pivot_root": 155, "_sysctl": 156, "adjtimex": 159,
        "chroot": 161, "acct": 163, "settimeofday": 164, "mount": 165, "umount2": 166, "swapon": 167,
        "swapoff": 168, "reboot": 169, "sethostname": 170, "setdomainname": 171, "iopl": 172, "ioperm": 173,
        "create_module": 174, "init_module": 175, "delete_module": 176, "quotactl": 179, "nfsservctl": 180,
        "lookup_dcookie": 212, "clock_settime": 227, "mbind": 237, "set_mempolicy": 238, "kexec_load": 246,
        "add_key": 248, "request_key": 249, "keyctl": 250, "migrate_pages": 256, "unshare": 272,
        "move_pages": 279, "perf_event_open": 298, "fanotify_init": 300, "name_to_handle_at": 303,
        "open_by_handle_at": 304, "clock_adjtime": 305, "setns": 308, "finit_module": 313,
        "kexec_file_load": 320, "bpf": 321, "userfaultfd": 323,
    },
)  # fmt: skip

AARCH64 = Machine(
    audit=0xC00000B7,
    checked={
        "clone": 220, "clone3": 435, "fallocate": 47, "fcntl": 25, "ioctl": 29, "prlimit": 261, "socket": 198,
        "socketpair": 199, "personality": 92, "setsockopt": 208,
    },
    refused={
        "lookup_dcookie": 18, "umount2": 39, "mount": 40, "pivot_root": 41, "nfsservctl": 42, "chroot": 51,
        "vhangup": 58, "quotactl": 60, "acct": 89, "unshare": 97, "kexec_load": 104, "init_module": 105,
        "delete_module": 106, "clock_settime": 112, "syslog": 116, "reboot": 142, "sethostname": 161,
        "setdomainname": 162, "settimeofday": 170, "adjtimex": 171, "add_key": 217, "request_key": 218,
        "keyctl": 219, "swapon": 224, "swapoff": 225, "mbind": 235, "set_mempolicy": 237,
        "migrate_pages": 238, "move_pages": 239, "perf_event_open": 241, "fanotify_init": 262,
        "name_to_handle_at": 264, "open_by_handle_at": 265, "clock_adjtime": 266, "setns": 268,
        "finit_module": 273, "bpf": 280, "userfaultfd": 282, "kexec_file_load": 294,
    },
)  # fmt: skip

MACHINES = {"x86_64": X86_64, "aarch64": AARCH64}

_Instruction = tuple[int, int, int, int]


def here() -> str:
    """The architecture of this system's programs. Python only knows the kernel's, which is another one where a 64-bit
    kernel runs 32-bit programs, as on many a Raspberry Pi."""
    return platform.machine() if sys.maxsize > 1 << 32 else f"{platform.machine()} with 32-bit programs"


@cache
def program(machine: str | None = None, *, preallocation: bool = False) -> bytes | None:
    """The filter for a machine, ready for bubblewrap; None for one we have no numbers for. `preallocation` allows
    fallocate, for a file system that bounds it."""
    known = MACHINES.get(machine or here())
    if known is None:
        return None
    return b"".join(struct.pack("HBBI", *one) for one in _instructions(known, preallocation))


def _instructions(machine: Machine, preallocation: bool) -> list[_Instruction]:
    checked = machine.checked
    calls = sorted({*machine.refused.values(), *REFUSED_EVERYWHERE.values()})
    ioctls = dict.fromkeys((_TIOCSTI, _TIOCLINUX, *_SET_FLAGS), errno.EPERM)
    ioctls |= {} if preallocation else dict.fromkeys(_RESERVE, errno.EOPNOTSUPP)
    return [
        (_LOAD, 0, 0, _ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, machine.audit),
        (_RETURN, 0, 0, _KILL),
        (_LOAD, 0, 0, _NUMBER),
        (_JUMP_AT_LEAST, 0, 1, _X32),
        _fail(errno.EPERM),
        # First what shells ask for most: the kernel remembers what is allowed whatever its arguments, and not this.
        *_refuse_values(checked["fcntl"], dict.fromkeys(_LEASES, errno.EINVAL)),
        *(one for call in calls for one in ((_JUMP_EQUAL, 0, 1, call), _fail(errno.EPERM))),
        # Its flags are behind a pointer no filter can follow; the C library falls back to clone.
        (_JUMP_EQUAL, 0, 1, checked["clone3"]),
        _fail(errno.ENOSYS),
        *_refuse_if(checked["clone"], 0, [(_JUMP_ANY_BIT, 0, 1, _NAMESPACES_OF_CLONE)], errno.EPERM),
        *_refuse_values(checked["ioctl"], ioctls),
        *_refuse_limits_of_others(checked["prlimit"]),
        *([] if preallocation else _only(checked["fallocate"], (_PUNCH_HOLE,), errno.EOPNOTSUPP, argument=1)),
        *_only(checked["socket"], _FAMILIES, errno.EAFNOSUPPORT),
        *_only(checked["socketpair"], _FAMILIES, errno.EAFNOSUPPORT),
        *_refuse_if(checked["setsockopt"], 1, _LOW_WATER, errno.ENOPROTOOPT),
        *_only(checked["personality"], _PERSONALITIES, errno.EPERM),
        (_RETURN, 0, 0, _ALLOW),
    ]


def _fail(number: int) -> _Instruction:
    return (_RETURN, 0, 0, _FAIL | number)


def _argument(index: int) -> _Instruction:
    """The lower half of an argument; on both machines it comes first."""
    return (_LOAD, 0, 0, 16 + 8 * index)


def _refuse_if(call: int, argument: int, tests: list[_Instruction], number: int) -> list[_Instruction]:
    """For one call: fail when the tests fall through to the failure, else allow."""
    body = [_argument(argument), *tests, _fail(number), (_RETURN, 0, 0, _ALLOW)]
    return [(_JUMP_EQUAL, 0, len(body), call), *body]


def _only(call: int, values: tuple[int, ...], number: int, argument: int = 0) -> list[_Instruction]:
    """For one call: allow these values of an argument."""
    tests = [(_JUMP_EQUAL, len(values) - index, 0, value) for index, value in enumerate(values)]
    return _refuse_if(call, argument, tests, number)


def _refuse_values(call: int, errors: dict[int, int]) -> list[_Instruction]:
    """For one call: fail for these values of the second argument."""
    body = [_argument(1)]
    for value, number in errors.items():
        body += [(_JUMP_EQUAL, 0, 1, value), _fail(number)]
    body.append((_RETURN, 0, 0, _ALLOW))
    return [(_JUMP_EQUAL, 0, len(body), call), *body]


_LOW_WATER = [(_JUMP_EQUAL, 0, 3, _SOL_SOCKET), _argument(2), (_JUMP_EQUAL, 0, 1, _SO_RCVLOWAT)]
"""setsockopt with SO_RCVLOWAT."""


def _refuse_limits_of_others(call: int) -> list[_Instruction]:
    """A process may set its own limits, which it calls process 0, and read everybody's: both halves of the pointer to
    new ones are zero then."""
    tests = [
        (_JUMP_EQUAL, 5, 0, 0),
        _argument(2),
        (_JUMP_EQUAL, 0, 2, 0),
        (_LOAD, 0, 0, 16 + 8 * 2 + 4),
        (_JUMP_EQUAL, 1, 0, 0),
    ]
    return _refuse_if(call, 0, tests, errno.EPERM)
