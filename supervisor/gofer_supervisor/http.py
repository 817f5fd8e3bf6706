"""The two things the supervisor says and asks over HTTP: is Gofer well, and the page while it cannot run."""

from __future__ import annotations

import contextlib
import json
import selectors
import socket
import time

PROBE_TIMEOUT = 10.0
READ_TIMEOUT = 5.0
"""Seconds in which a visitor of the page has to ask for it."""
MAX_VISITORS = 64
RETRY_AFTER = 30
ALL_ADDRESSES = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # noqa: S104 - asked of this machine alone


class HealthCheck:
    """One request for a path, made without waiting: call `look` when its socket is ready, or late."""

    def __init__(self, address: tuple[str, int], path: str) -> None:
        host, port = ALL_ADDRESSES.get(address[0], address[0]), address[1]
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        self.socket = socket.socket(family, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        self.give_up = time.monotonic() + PROBE_TIMEOUT
        self._asked = (
            f"GET {path} HTTP/1.0\r\nHost: localhost\r\nUser-Agent: gofer-supervisor\r\n\r\n".encode()
        )
        self._answer = b""
        with contextlib.suppress(OSError):  # `look` finds it out
            self.socket.connect((host, port))

    @property
    def wants(self) -> int:
        """What to wait for: room to ask, or something to read."""
        return selectors.EVENT_WRITE if self._asked else selectors.EVENT_READ

    def look(self) -> int | None:
        """The status that was answered; 0 when none came, None while one may still come."""
        try:
            if self._asked:
                self._asked = self._asked[self.socket.send(self._asked) :]
                return None if time.monotonic() < self.give_up else 0
            data = self.socket.recv(4096)
        except (BlockingIOError, InterruptedError):
            return None if time.monotonic() < self.give_up else 0
        except OSError:
            return 0
        self._answer += data
        line = self._answer.split(b"\r\n", 1)[0].split()
        if data and b"\r\n" not in self._answer:
            return None
        return int(line[1]) if len(line) > 1 and line[1].isdigit() else 0

    def close(self) -> None:
        self.socket.close()


class OutagePage:
    """Answers whoever comes while nothing can run: 503, with what is wrong in plain words."""

    def __init__(self, listener: socket.socket, selector: selectors.BaseSelector, why: str) -> None:
        self._listener = listener
        self._selector = selector
        self._why = why
        self._visitors: dict[socket.socket, float] = {}
        selector.register(listener, selectors.EVENT_READ, self._welcome)

    def close(self) -> None:
        """Leave the door to the next process, which finds whoever has not been answered yet."""
        self._selector.unregister(self._listener)
        for visitor in list(self._visitors):
            self._leave(visitor)

    def tidy(self) -> None:
        """Let go of visitors who ask for nothing."""
        for visitor, until in list(self._visitors.items()):
            if time.monotonic() > until:
                self._leave(visitor)

    def _welcome(self) -> None:
        with contextlib.suppress(OSError):
            visitor, _ = self._listener.accept()
            if len(self._visitors) >= MAX_VISITORS:
                visitor.close()
                return
            visitor.setblocking(False)
            self._visitors[visitor] = time.monotonic() + READ_TIMEOUT
            self._selector.register(visitor, selectors.EVENT_READ, lambda: self._answer(visitor))

    def _answer(self, visitor: socket.socket) -> None:
        with contextlib.suppress(OSError):
            asked = visitor.recv(16384)
            if asked:
                visitor.send(_answer(asked, self._why))
                visitor.shutdown(socket.SHUT_WR)
        self._leave(visitor)

    def _leave(self, visitor: socket.socket) -> None:
        self._visitors.pop(visitor, None)
        with contextlib.suppress(KeyError, ValueError):
            self._selector.unregister(visitor)
        visitor.close()


def _answer(asked: bytes, why: str) -> bytes:
    """A page for a browser, a problem document (RFC 9457) for everybody else."""
    head = asked.lower()
    for_people = b"text/html" in head and head.startswith((b"get ", b"head "))
    if for_people:
        kind, body = (
            "text/html; charset=utf-8",
            _PAGE.format(why=why.replace("&", "&amp;").replace("<", "&lt;")),
        )
    else:
        problem = {"type": "about:blank", "title": "Gofer is not running", "status": 503, "detail": why}
        kind, body = "application/problem+json", json.dumps(problem)
    content = b"" if head.startswith(b"head ") else body.encode()
    lines = (
        "HTTP/1.1 503 Service Unavailable",
        f"Content-Type: {kind}",
        f"Content-Length: {len(body.encode())}",
        f"Retry-After: {RETRY_AFTER}",
        "Cache-Control: no-store",
        "Content-Security-Policy: default-src 'none'; style-src 'unsafe-inline'",
        "Connection: close",
    )
    return "\r\n".join([*lines, "", ""]).encode() + content


_PAGE = """<!doctype html>
<html lang="en"><meta charset="utf-8"><meta name="viewport" content="width=device-width">
<title>Gofer is not running</title>
<style>body{{font:16px/1.5 system-ui,sans-serif;max-width:40rem;margin:4rem auto;padding:0 1rem;
color-scheme:light dark}}</style>
<h1>Gofer is not running</h1>
<p>{why}</p>
<p>Nothing that was accepted is lost. Gofer is started again by itself; whoever runs it sees more with
<code>gofer update list</code> and in its log.</p>
</html>
"""
