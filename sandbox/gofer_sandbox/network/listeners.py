"""Listening sockets inside a sandbox's network namespace, held by this process outside it.

Nothing runs inside that a command could kill, and no socket file is shown to it.
"""

from __future__ import annotations

import asyncio
import errno
import os
import socket
import sys
from pathlib import Path

from gofer_sandbox import processes
from gofer_sandbox.errors import SandboxGone
from gofer_sandbox.network.errors import EgressUnavailable, PortTaken
from gofer_sandbox.record import Reference

_HELPER = Path(__file__).with_name("enter.py")
_TIMEOUT = 20.0


async def listen_inside(reference: Reference, ports: tuple[int, ...]) -> list[socket.socket]:
    """Sockets listening on those ports of the sandbox's own 127.0.0.1."""
    namespace = _network_of(reference)
    ours, theirs = socket.socketpair()
    try:
        await _run_helper(namespace, theirs.fileno(), ports)
        theirs.close()
        return _received(ours, ports)
    finally:
        os.close(namespace)
        ours.close()
        theirs.close()


def _network_of(reference: Reference) -> int:
    """The namespace, opened through the process's own directory so that a reused pid cannot be meant."""
    try:
        process = os.open(f"/proc/{reference.pid}", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except OSError:
        raise SandboxGone from None
    try:
        if reference.start and processes.start_time(reference.pid) != reference.start:
            raise SandboxGone
        return os.open("ns/net", os.O_RDONLY | os.O_CLOEXEC, dir_fd=process)
    except PermissionError:
        raise EgressUnavailable(
            "cannot open the sandbox's network namespace: run as root or as the user it belongs to"
        ) from None
    except (FileNotFoundError, ProcessLookupError):
        raise SandboxGone from None
    finally:
        os.close(process)


async def _run_helper(namespace: int, channel: int, ports: tuple[int, ...]) -> None:
    # -I and -S: the helper must not read this environment or any site-packages, and starts faster.
    helper = await asyncio.create_subprocess_exec(
        sys.executable,
        "-I",
        "-S",
        str(_HELPER),
        str(namespace),
        str(channel),
        *map(str, ports),
        pass_fds=(namespace, channel),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.DEVNULL,
        env={},
    )
    try:
        await asyncio.wait_for(helper.wait(), _TIMEOUT)
    except TimeoutError:
        helper.kill()
        await helper.wait()
        raise EgressUnavailable("entering the sandbox's network namespace took too long") from None


def _received(channel: socket.socket, ports: tuple[int, ...]) -> list[socket.socket]:
    said, fds, _, _ = socket.recv_fds(channel, 256, len(ports))
    sockets = [socket.socket(fileno=fd) for fd in fds]
    if len(sockets) == len(ports):
        return sockets
    for each in sockets:
        each.close()
    raise _explained(said.decode(errors="replace"), ports)


def _explained(said: str, ports: tuple[int, ...]) -> EgressUnavailable:
    if said.startswith(f"E{errno.EADDRINUSE} "):
        return PortTaken(
            f"a process in the sandbox already listens on one of the ports {', '.join(map(str, ports))}"
        )
    if said.startswith(f"E{errno.EPERM} "):
        return EgressUnavailable(
            "not allowed to enter the sandbox's network namespace: run as root or as the user who made it"
        )
    return EgressUnavailable(
        f"could not listen in the sandbox's network namespace: {said[1:] or 'the helper ended early'}"
    )
