"""Which program inside made a connection, so that a refusal can name it."""

from __future__ import annotations

import os
from collections.abc import Iterator

from gofer_sandbox import processes

_LINKS_READ = 20_000  # a session may hold more open files than are worth searching


def command_behind(keeper: int, port: int) -> str:
    """The command line of the process that holds that port of the sandbox's loopback; "" if none is found.

    It waits for our answer meanwhile, so it is still there to be found.
    """
    socket = _socket_at(keeper, port)
    if socket is None:
        return ""
    for count, (pid, target) in enumerate(_open_files(keeper)):
        if target == socket:
            return processes.command_line(pid)
        if count > _LINKS_READ:
            break
    return ""


def _socket_at(keeper: int, port: int) -> str | None:
    """The name /proc gives to the connected socket with that local port, in the keeper's network."""
    try:
        with open(f"/proc/{keeper}/net/tcp") as table:
            next(table)
            for line in table:
                fields = line.split()
                if fields[1].endswith(f":{port:04X}") and fields[3] == "01":
                    return f"socket:[{fields[9]}]"
    except (OSError, StopIteration, IndexError):
        pass
    return None


def _open_files(keeper: int) -> Iterator[tuple[int, str]]:
    for pid in processes.descendants(keeper):
        try:
            names = os.listdir(f"/proc/{pid}/fd")
        except OSError:
            continue
        for name in names:
            try:
                yield pid, os.readlink(f"/proc/{pid}/fd/{name}")
            except OSError:
                continue
