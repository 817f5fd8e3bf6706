"""Releases for the supervisor to run: small packages called `gofer`, each with a fault of its own, and a home for them.

They keep to what the supervisor asks of a release (LISTEN_FDS, NOTIFY_SOCKET, `backup`, `migrate`, `restore`) and write
each thing they do to a file, which is the ground truth of the tests.
"""

from __future__ import annotations

import http.client
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

from gofer.releases.keys import trust_key
from gofer.releases.lifecycle import approve
from gofer.releases.stage import build_release, stage
from gofer.releases.trial import compile_release
from gofer_supervisor.home import Home, Release
from gofer_supervisor.process import start_time
from support.patience import Deadline
from support.releases import small_source, write_key

SOURCE = Path(__file__).parents[2] / "supervisor"
PROGRAM = """
import http.server, os, signal, socket, sys, threading, time
fault, did = {fault!r}, {did!r}
build, what = os.environ["GOFER_BUILD"], sys.argv[1]

def note(text):
    with open(did, "a") as file:
        file.write(f"{{build}} {{text}}\\n")

def notify(state):
    sender = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    sender.connect("\\0" + os.environ["NOTIFY_SOCKET"][1:])
    sender.send(state.encode())

note(what)
if what == "migrate" and fault == "migration":
    sys.exit("the table is not there")
if what in ("backup", "migrate", "restore"):
    sys.exit(0)
if fault == "start":
    sys.exit("it cannot import itself")
if fault == "configuration":
    sys.exit(78)
if fault == "silent":
    time.sleep(3600)
while fault.startswith("waits ") and not os.path.exists(fault[6:]):
    time.sleep(0.02)
if fault == "memory":
    eaten = b"x" * 300_000_000
    time.sleep(3600)
if fault.startswith("disk "):
    with open(fault[5:], "wb") as file:
        while True:
            file.write(b"x" * 4096)
            file.flush()
if fault == "orphans":
    for _ in range(3):
        os.system("(sleep 0.2 &) ; true")
    note("made orphans")

class Answer(http.server.BaseHTTPRequestHandler):
    def do_GET(self):
        if fault == "request" and self.path == "/message":
            os._exit(1)
        self.send_response(500 if fault == "unhealthy" else 200)
        self.end_headers()
        self.wfile.write(build.encode())
    do_POST = do_GET
    timeout = 5
    def log_message(self, *_):
        pass

server = http.server.ThreadingHTTPServer(("", 0), Answer, bind_and_activate=False)
server.socket = socket.socket(fileno=3)
server.daemon_threads = False  # whoever was let in is answered before the process ends, as by a real release
signal.signal(signal.SIGTERM, lambda *_: threading.Thread(target=server.shutdown).start())
notify("READY=1")
if os.environ.get("GOFER_ON_PROBATION") and fault != "mute":
    notify("GOFER_UNFIT=5 of 6 attempts failed" if fault == "unfit" else "GOFER_PROVED=1")
if fault == "later":
    threading.Timer(0.5, lambda: os._exit(3)).start()
if fault == "hangs":
    notify("WATCHDOG=1")
else:
    def live():
        while True:
            unready = fault == "unready" or fault.startswith("unready ") and os.path.exists(fault[8:])
            notify("WATCHDOG=1\\nGOFER_UNREADY=no connection is free" if unready else "WATCHDOG=1")
            time.sleep(0.2)
    threading.Thread(target=live, daemon=True).start()
server.serve_forever()
server.server_close()
note("stopped")
"""


class Supervised:
    """A home with releases, and the supervisor that runs them as a process of its own."""

    def __init__(self, directory: Path) -> None:
        self.home = Home(str(directory / "home"))
        self.home.prepare()
        self._directory = directory
        self._did = directory / "did"
        self._key = directory / "release.pem"
        self._log = directory / "supervisor.log"
        self.port = 0
        self.process: subprocess.Popen[str] | None = None

    def add(self, build: str, fault: str = "", **facts: Any) -> Release:
        """A release with a fault, beside those that are there."""
        package = self._directory / build / "gofer"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        self.rewrite(build, fault)
        release = Release(build=build, version="1", python=sys.executable, path=(str(package.parent),))
        self.home.add(release, source="file", **facts)
        return release

    def rewrite(self, build: str, fault: str) -> None:
        """Have the next process of a release show another fault."""
        program = PROGRAM.format(fault=fault, did=str(self._did))
        (self._directory / build / "gofer" / "__main__.py").write_text(program)

    def stage(self, number: int, fault: str = "") -> str:
        """A release with a fault as people get it: built from a source tree, signed, staged and approved. Returns its
        build."""
        program = PROGRAM.format(fault=fault, did=str(self._did))
        top = small_source(self._directory / f"source-{number}", f"1.{number}", program)
        if not self._key.exists():
            trust_key(self.home, write_key(self._key).with_suffix(".pub"))
        wheel, _ = build_release(top, self._directory / f"dist-{number}", key=self._key)
        build = stage(self.home, wheel, _compiled).build
        approve(self.home, build, by="ada")
        return build

    def start(
        self,
        installed: Release,
        *,
        inside: Sequence[str] = (),
        environment: Mapping[str, str] | None = None,
        first: str = "",
        log: IO[bytes] | None = None,
        **config: Any,
    ) -> None:
        """Start the supervisor, with little patience so that the tests are quick: inside of another command, with more
        in its environment, or after it has run some Python."""
        command = [*inside, *self.command(installed, first=first, **config)]
        everything = {**os.environ, **(environment or {})}
        with self._log.open("ab") as own:
            output = log if log is not None else own
            self.process = subprocess.Popen(command, stdout=output, stderr=output, text=True, env=everything)

    def command(self, installed: Release, *, first: str = "", **config: Any) -> list[str]:
        """The command line of the supervisor."""
        quick = {"stop_within": 5, "ready_within": 60, "probation": 0.3, "watchdog": 0, "health_every": 60}
        given = {
            "home": self.home.path,
            "release": {name: getattr(installed, name) for name in Release.__slots__},
            "port": self.port,
            **quick,
            **config,
        }
        start = f"import sys; sys.path.insert(0, {str(SOURCE)!r}); from gofer_supervisor.__main__ import main"
        program = f"{first}\n{start}; sys.exit(main())"
        return [sys.executable, "-I", "-S", "-c", program, json.dumps(given)]

    def damage(self, build: str) -> None:
        """As a disk may: half of a release's manifest is gone."""
        Path(self.home.path, "releases", build, "manifest.json").write_text('{"build": "')

    def end_process(self) -> None:
        """Kill the process that runs."""
        ((pid, _),) = self.home.load().processes.values()
        os.kill(pid, signal.SIGKILL)

    def ask(self, **request: Any) -> None:
        """Ask the supervisor for something, as `gofer update` does."""
        self.home.ask(request)

    def kill(self) -> None:
        """Kill the supervisor, and it alone."""
        assert self.process is not None
        self.process.kill()
        self.process.wait()

    def stop(self) -> int:
        """Have it end in good order; returns its exit code."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return self.process.wait(60)

    def get(self, path: str = "/", **headers: str) -> tuple[int, str]:
        """What is answered at the port: status and body."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=60)
        try:
            connection.request("GET", path, headers=headers)
            answer = connection.getresponse()
            return answer.status, answer.read().decode()
        finally:
            connection.close()

    def serves(self, build: str) -> bool:
        """Whether a release answers."""
        try:
            return self.get() == (200, build)
        except OSError:
            return False

    @property
    def did(self) -> list[str]:
        """What the releases did, in order."""
        return self._did.read_text().splitlines() if self._did.exists() else []

    @property
    def logged(self) -> str:
        """What the supervisor and the releases wrote."""
        return self._log.read_text()

    def events(self, *kinds: str) -> list[dict[str, Any]]:
        """What the supervisor left for the event log."""
        places = sorted(Path(self.home.path, "events").glob("*.json"), key=lambda place: int(place.stem))
        found = [json.loads(place.read_text()) for place in places]
        return [{"kind": one["kind"], **one["data"]} for one in found if not kinds or one["kind"] in kinds]

    def proved(self, build: str) -> bool:
        """Whether a release has become the good one, and everything about that is written."""
        return self.home.linked("good") == build and self.trial() is None and self.home.asked() is None

    def trial(self) -> dict[str, Any] | None:
        return self.home.load().trial


def _compiled(release: Release) -> str:
    compile_release(release)
    return "it is whole"


@contextmanager
def supervised(directory: Path, port: int) -> Iterator[Supervised]:
    """A supervisor that has ended, with all it started, when the test has."""
    one = Supervised(directory)
    one.port = port
    try:
        yield one
    finally:
        if one.process is not None and one.process.poll() is None:
            one.stop()


def eventually(true: Callable[[], bool], seconds: float = 20) -> None:
    """Wait until something is so."""
    deadline = Deadline(seconds)
    while not true():
        assert deadline.left > 0, "it did not become so"
        time.sleep(0.02)


def alive(pid: int) -> bool:
    """Whether a process runs; one that has ended and was not waited for yet does not."""
    return start_time(pid) != 0
