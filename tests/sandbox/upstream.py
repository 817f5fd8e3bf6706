"""A strict web server on loopback: git over smart HTTP for those who hold the password, and a few pages."""

from __future__ import annotations

import base64
import contextlib
import os
import ssl
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import urlsplit

from support.patience import patience

USER, PASSWORD = "x-access-token", "s3cr3t-canary-token"


@dataclass
class Seen:
    """One request as it arrived: the ground truth of the tests."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes = b""


@dataclass
class Upstream:
    """A running server; `pages` answers paths, `repositories` is the root of the bare repositories."""

    port: int
    repositories: Path
    seen: list[Seen] = field(default_factory=list)
    pages: dict[str, tuple[int, dict[str, str], bytes]] = field(default_factory=dict)

    over: threading.Event = field(default_factory=threading.Event)

    def git(self, *arguments: str) -> str:
        """Run git in the repository as its owner."""
        result = subprocess.run(
            ["git", "-c", "safe.directory=*", *arguments],
            cwd=self.repositories / "org" / "repo.git",
            capture_output=True,
            text=True,
            env={"PATH": os.environ["PATH"], "HOME": str(self.repositories)},
        )
        assert result.returncode == 0, result.stderr
        return result.stdout


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    upstream: Upstream

    def log_message(self, *_: object) -> None:
        pass

    def handle(self) -> None:
        with contextlib.suppress(ConnectionError):  # clients that go away are part of the tests
            super().handle()

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        body = b""
        while size := int(self.rfile.readline(), 16):
            body += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return body

    def _answer(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name, value)
        if "Content-Length" not in headers:
            self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _serve(self) -> None:
        body = self._body()
        self.upstream.seen.append(
            Seen(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
        )
        path = urlsplit(self.path).path
        if path in self.upstream.pages:
            self._answer(*self.upstream.pages[path])
        elif path == "/stall":
            self._stall()
        elif path == "/echo":
            lines = "".join(f"{name}: {value}\n" for name, value in self.headers.items())
            self._answer(
                200, {"Set-Cookie": "a=b", "X-Got": self.headers.get("Authorization", "")}, lines.encode()
            )
        elif path.endswith(("/info/refs", "/git-upload-pack", "/git-receive-pack")):
            self._git(body)
        else:
            self._answer(404, {}, b"no such page\n")

    def _stall(self) -> None:
        """Send the beginning of an answer and then nothing until the test is over."""
        self.send_response(200)
        self.send_header("Content-Length", "100")
        self.end_headers()
        self.wfile.write(b"beginning")
        self.wfile.flush()
        self.upstream.over.wait(patience(60))

    def _git(self, body: bytes) -> None:
        expected = "Basic " + base64.b64encode(f"{USER}:{PASSWORD}".encode()).decode()
        if self.headers.get("Authorization") != expected:
            self._answer(401, {"WWW-Authenticate": 'Basic realm="git"'}, b"who are you?\n")
            return
        parts = urlsplit(self.path)
        environment = {
            "PATH": os.environ["PATH"],
            "HOME": str(self.upstream.repositories),
            "GIT_PROJECT_ROOT": str(self.upstream.repositories),
            "GIT_HTTP_EXPORT_ALL": "1",
            "GIT_CONFIG_COUNT": "1",
            "GIT_CONFIG_KEY_0": "safe.directory",
            "GIT_CONFIG_VALUE_0": "*",
            "REMOTE_USER": USER,
            "REQUEST_METHOD": self.command,
            "PATH_INFO": parts.path,
            "QUERY_STRING": parts.query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
            "GIT_PROTOCOL": self.headers.get("Git-Protocol", ""),
        }
        said = subprocess.run(
            ["git", "http-backend"], input=body, env=environment, capture_output=True, check=True
        ).stdout
        head, _, content = said.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().split("\r\n"))
        self._answer(int(headers.pop("Status", "200").split()[0]), headers, content)

    do_GET = do_POST = do_PUT = do_DELETE = do_HEAD = do_PATCH = _serve


def seed_repositories(repositories: Path) -> None:
    """Make two bare repositories with one commit on main and on a branch."""
    environment = {
        "PATH": os.environ["PATH"], "HOME": str(repositories),
        "GIT_AUTHOR_NAME": "a", "GIT_AUTHOR_EMAIL": "a@b",
        "GIT_COMMITTER_NAME": "a", "GIT_COMMITTER_EMAIL": "a@b",
    }  # fmt: skip
    for name in ("repo", "other"):
        bare, work = repositories / "org" / f"{name}.git", repositories / f"{name}-work"
        for command in (
            ["git", "init", "-q", "--bare", "-b", "main", str(bare)],
            ["git", "-C", str(bare), "config", "http.receivepack", "true"],
            ["git", "init", "-q", "-b", "main", str(work)],
            ["git", "-C", str(work), "commit", "-q", "--allow-empty", "-m", "first"],
            ["git", "-C", str(work), "push", "-q", str(bare), "main", "main:refs/heads/work/old"],
        ):
            subprocess.run(command, check=True, env=environment)


@contextmanager
def upstream(directory: Path, tls: ssl.SSLContext | None = None) -> Iterator[Upstream]:
    """Serve on a free port of loopback until the end of the block."""
    handler = type("Handler", (_Handler,), {})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        if tls is not None:
            server.socket = tls.wrap_socket(server.socket, server_side=True)
        running = Upstream(server.server_address[1], directory)
        handler.upstream = running  # type: ignore[attr-defined]
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            yield running
        finally:
            running.over.set()
            server.shutdown()
            thread.join()
