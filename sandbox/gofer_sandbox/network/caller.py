"""Which program inside made a connection: a refusal names it, and a grant may be for certain ones alone."""

from __future__ import annotations

import asyncio
import contextlib
import socket
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from gofer_sandbox import processes
from gofer_sandbox.network.errors import ProxyRefused
from gofer_sandbox.provider import Process

_CONNECTED = "01"
_MAX_LINKS = 20_000  # a session may hold more open files than are worth searching


End = tuple[str, int]
Ends = tuple[End, End]
"""Of a connection to us: the other side's address and port, and ours. No other connection has the same."""


def command_behind(keeper: int, ends: Ends) -> str:
    """The command line of the process that holds that end of a connection to us; "" if none is found.

    It waits for our answer meanwhile, so it is still there to be found.
    """
    pid = next(_holders(keeper, ends), None)
    return "" if pid is None else processes.command_line(pid)


@dataclass(frozen=True, slots=True)
class Callers:
    """What a sandbox's shell started since some moment, and all that this started in turn.

    What ran before is not among them, nor what it starts now; nor what has left its parents, since nobody can
    say any more where it came from. A program that was told to can still carry messages for others.
    """

    shell: Callable[[], Process | None]
    """The user's shell, as long as there is one."""
    before: frozenset[tuple[int, int]]
    """What ran at that moment, by pid and start. Start times alone would not do: they count in hundredths of a
    second, in which a shell can end one command and begin the next."""

    @classmethod
    def from_now(cls, shell: Callable[[], Process | None]) -> Callers:
        """What the shell starts from here on."""
        found = shell()
        pids = processes.descendants(found.parent) if found else ()
        return cls(shell, frozenset((pid, start) for pid in pids if (start := processes.start_time(pid))))

    async def require(self, ends: Ends) -> None:
        """Raise ProxyRefused unless they made that connection to us."""
        if not await asyncio.to_thread(self._made, ends):
            raise ProxyRefused("this program was not started by the commands that it is open for")

    def _made(self, ends: Ends) -> bool:
        """Whether they alone hold the other end of a connection to us."""
        shell = self.shell()
        if shell is None:
            return False
        pids = set(_holders(shell.parent, ends))
        return bool(pids) and all(self._is_one(pid, shell) for pid in pids)

    def _is_one(self, pid: int, shell: Process) -> bool:
        while pid != shell.pid:
            found = processes.stat(pid)
            if found is None or (pid, found[1]) in self.before or pid == shell.parent:
                return False
            pid = found[0]
        return processes.start_time(pid) == shell.start


def _holders(keeper: int, ends: Ends) -> Iterator[int]:
    """The processes that hold the other end of a connection, as far as they are worth searching for."""
    wanted = _socket_at(keeper, ends)
    if wanted is None:
        return
    count = 0
    for pid in processes.descendants(keeper):
        targets = processes.open_files(pid)
        if wanted in targets:
            yield pid
        count += len(targets)
        if count > _MAX_LINKS:
            return


def _socket_at(keeper: int, ends: Ends) -> str | None:
    """The name /proc gives to the other end of a connection, in the keeper's network. A port alone would not do:
    at another address of the loopback, or on the way to another port, it may be somebody else's."""
    with contextlib.suppress(OSError, IndexError):
        wanted = [*map(_as_listed, ends), _CONNECTED]
        with open(f"/proc/{keeper}/net/tcp") as table:
            for line in table:
                fields = line.split()
                if fields[1:4] == wanted:
                    return f"socket:[{fields[9]}]"
    return None


def _as_listed(end: End) -> str:
    """An address and port as /proc/net/tcp has them: the bytes as the machine reads a number."""
    number = int.from_bytes(socket.inet_aton(end[0]), sys.byteorder)
    return f"{number:08X}:{end[1]:04X}"
