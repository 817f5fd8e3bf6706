"""Acting as the session's user for the length of one file operation, or to start a program."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager

from gofer_sandbox.files.kernel import (
    drop_thread_ambient,
    set_thread_fsgid,
    set_thread_fsuid,
    set_thread_gid,
    set_thread_groups,
    set_thread_uid,
)


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
        set_thread_groups([])
        set_thread_fsgid(gid)
        set_thread_fsuid(uid)  # last: it gives up the rights over other people's files
        yield
    finally:
        set_thread_fsuid(0)
        set_thread_fsgid(os.getegid())
        set_thread_groups(groups)


@contextmanager
def starting_as(uid: int, gid: int) -> Iterator[None]:
    """Have what this thread starts be another user's from its first instruction; only root may ask.

    The thread keeps root as its saved user, and comes back. A program cannot: executing it makes the effective
    user the saved one, and takes away every capability.
    """
    groups = os.getgroups()
    try:
        drop_thread_ambient()
        set_thread_groups([])
        set_thread_gid(gid)
        set_thread_uid(uid)
        yield
    finally:
        set_thread_uid(0)
        set_thread_gid(0)
        set_thread_groups(groups)
