"""Run as a program: enter a network namespace, listen on its loopback, and pass the sockets back.

Entering the user namespace that owns it needs a process with one thread, and leaves no way back; hence a
process of its own that lives for milliseconds. It imports only the standard library.
"""

import ctypes
import fcntl
import os
import socket
import struct
import sys

_CLONE_NEWUSER = 0x10000000
_CLONE_NEWNET = 0x40000000
_NS_GET_USERNS = 0xB701
_SIOCGIFFLAGS, _SIOCSIFFLAGS = 0x8913, 0x8914
_IFF_UP = 1


def _enter(namespace: int) -> None:
    """Enter the network namespace, through the user namespace that owns it unless that is our own."""
    owner = fcntl.ioctl(namespace, _NS_GET_USERNS)
    if os.fstat(owner).st_ino != os.stat("/proc/self/ns/user").st_ino:
        _setns(owner, _CLONE_NEWUSER)
    _setns(namespace, _CLONE_NEWNET)


def _setns(namespace: int, kind: int) -> None:
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.setns(ctypes.c_int(namespace), ctypes.c_int(kind)) != 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))


def _raise_loopback() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as control:
        request = struct.pack("16sh22x", b"lo", 0)
        (flags,) = struct.unpack_from("h", fcntl.ioctl(control, _SIOCGIFFLAGS, request), 16)
        if not flags & _IFF_UP:
            fcntl.ioctl(control, _SIOCSIFFLAGS, struct.pack("16sh22x", b"lo", flags | _IFF_UP))


def main(namespace: int, channel: int, ports: list[int]) -> None:
    """Answer on the channel with the sockets, or with the error in words."""
    with socket.socket(fileno=channel) as answer:
        try:
            _enter(namespace)
            _raise_loopback()
            sockets = [socket.create_server(("127.0.0.1", port), backlog=128) for port in ports]
        except OSError as error:
            answer.send(f"E{error.errno} {error.strerror}".encode())
            return
        socket.send_fds(answer, [b"ok"], [each.fileno() for each in sockets])


if __name__ == "__main__":
    main(int(sys.argv[1]), int(sys.argv[2]), [int(port) for port in sys.argv[3:]])
