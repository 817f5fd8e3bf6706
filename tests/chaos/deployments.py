"""Deployments under load: real releases, good and bad, over a real store, while people write and something is killed.

Each deployment takes one kind of release, waits for one step of the transaction, and kills the supervisor, what it
runs, or everything. In the end a release must serve, and the right one; every message must be answered exactly once;
and the owners must have been told exactly once.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import httpx2
from sqlalchemy import Connection, select

from chaos.campaign import postgres_or_none
from e2e.scenario import Scenario, prepared
from gofer.releases.lifecycle import approve
from gofer.releases.source import release_source, write_source
from gofer.releases.stage import build_release, stage
from gofer.releases.trial import compile_release
from gofer.store import migrations
from gofer.store.tables import LIVE, events, in_state, jobs
from gofer_supervisor.home import Release, write_json
from supervisor.releases import Supervised
from support.patience import Deadline

ROOMS = 3
STEPS = ("stop", "backup", "migrate", "prove", "ready", "revert", "never")
"""`ready` is the part of `prove` in which the new release serves, `revert` comes when it is taken back; with `never`,
nothing is killed."""
VICTIMS = ("supervisor", "release", "tree")
MATRIX = [*itertools.product(STEPS[:-1], VICTIMS), ("never", "")]
"""Every victim at every step, and a deployment that is left alone."""
OTHER_SCHEMA = "9999-{:04d}"
"""Another one for each release, so that the store is copied and migrated on the way."""
SERVE = "platform/gofer/serve.py"
FAULTS: dict[str, tuple[str, str]] = {
    "good": ("platform/gofer/variant.py", "VARIANT = {number}\n"),
    "crashes at start": (SERVE, "\n\ndef run(*_):\n    raise SystemExit({number} % 2 + 1)\n"),
    "crashes later": (
        SERVE,
        "\n\n_run = run\n\n\ndef run(*given):\n    import threading\n\n"
        "    threading.Timer(1 + {number} % 2, lambda: os._exit(3)).start()\n    _run(*given)\n",
    ),
    "dies of a message": (
        "platform/gofer/intake/receive.py",
        "\n\nasync def _die(*_, **__):\n    __import__('os')._exit({number} % 2 + 1)\n\n\nIntake.take = _die\n",
    ),
    "gives no answer": (
        "platform/gofer/releases/canary.py",
        "\n\nANSWER_TIMEOUT = 3.0\n\n\nasync def _no(*_):\n    raise CanaryFailed('{number}')\n\n\n_answered = _no\n",
    ),
    "cannot migrate": (
        "platform/gofer/cli/instance.py",
        "\n\nmigrate.__code__ = (lambda as_json=False: {number} / 0).__code__\n",
    ),
    "never ready": (SERVE, "\n\ndef run(*_):\n    time.sleep(3600 + {number})\n"),
    "eats memory": (
        SERVE,
        "\n\ndef run(*_):\n    eaten = b'x' * (900_000_000 + {number})\n    time.sleep(3600)\n",
    ),
    "tampered": ("platform/gofer/variant.py", "VARIANT = -{number}\n"),
}
"""What is added to which file of the source."""
MAY_WAIT = ("(release_notice)", "(release_question)", "(memory)")
"""Kinds of job that wait for a person or for a quiet hour."""
MAX_MEMORY = 700_000_000
READY_WITHIN, PROBATION = 60.0, 2.0
TIMEOUT = 240.0


@dataclass
class Tally:
    """What a campaign found."""

    database: str
    deployments: int = 0
    messages: int = 0
    replies: int = 0
    refused: int = 0
    """Requests that had to be sent again although nothing was killed and two processes take turns."""
    seconds: float = 0
    killed: Counter[str] = field(default_factory=Counter)
    kinds: Counter[str] = field(default_factory=Counter)
    complaints: list[str] = field(default_factory=list)

    @property
    def clean(self) -> bool:
        return not self.complaints

    def figures(self) -> dict[str, Any]:
        """For a machine."""
        return {
            "database": self.database,
            "deployments": self.deployments,
            "messages": self.messages,
            "replies": self.replies,
            "refused": self.refused,
            "seconds": round(self.seconds, 1),
            "complaints": len(self.complaints),
        }

    def line(self) -> str:
        """For a person."""
        kinds = ", ".join(f"{count} {name}" for name, count in sorted(self.kinds.items()))
        killed = ", ".join(f"{count} {name}" for name, count in sorted(self.killed.items())) or "none"
        return (
            f"{self.database}, deployments: {self.deployments} ({kinds}; kills: {killed}) in {self.seconds:.0f} s; "
            f"{self.messages} messages, {self.replies} replies, {self.refused} refused; "
            f"{len(self.complaints)} wrong"
        )


Case = tuple[str, str, str]


def cases(seed: int) -> Iterator[Case]:
    """Kinds of release, steps and victims in an order by chance, for ever: every victim at every step once, with a kind
    that was not there yet, then again with others. Each release is good every third time."""
    chance = random.Random(seed)
    bad = [kind for kind in FAULTS if kind != "good"]
    kinds = itertools.cycle(chance.sample([*bad, *["good"] * (len(bad) // 2)], len(bad) + len(bad) // 2))
    while True:
        for step, victim in chance.sample(MATRIX, len(MATRIX)):
            yield next(kinds), step, victim
        next(kinds)  # so that the next round has other kinds at the same places


async def deployments(database: str, chosen: list[Case]) -> Tally:
    """Run one campaign; what it returns says what went wrong."""
    tally = Tally(database)
    begun = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="gofer-chaos-") as folder, postgres_or_none(database) as url:
        data_dir = Path(folder) / "data"
        data_dir.mkdir(mode=0o700)
        async with prepared(data_dir, url, lease=1.0, slots=4, stop_within=5) as scenario:
            try:
                await _Campaign(scenario, Path(folder), tally, rolling=database == "postgresql").run(chosen)
            except TimeoutError as error:
                tally.complaints.append(str(error))
            if tally.complaints:
                log = tempfile.mkstemp(prefix=f"gofer-chaos-{database}-", suffix=".log")[1]
                shutil.copy(Path(folder, "log"), log)
                tally.complaints.append(f"the log is in {log}")
    tally.seconds = time.monotonic() - begun
    return tally


def compiled(release: Release) -> str:
    """Nothing is checked, so that also what does not work can be deployed."""
    compile_release(release)
    return "not checked"


class _Campaign:
    def __init__(self, scenario: Scenario, folder: Path, tally: Tally, *, rolling: bool) -> None:
        self._scenario = scenario
        self._folder = folder
        self._tally = tally
        self._rolling = rolling
        self._gofer = Supervised(folder)
        self._gofer.port = scenario.port
        self._enough = asyncio.Event()
        self._strict = False
        self._log = (folder / "log").open("ab")

    async def run(self, chosen: list[Case]) -> None:
        talking: list[asyncio.Task[None]] = []
        try:
            self._start()
            await self._until(
                lambda: self._gofer.proved("installed"), "the first release did not prove itself"
            )
            talking = [asyncio.create_task(self._talk(f"room{number}")) for number in range(ROOMS)]
            for number, case in enumerate(chosen):
                await self._deploy(number, *case)
            self._enough.set()
            await asyncio.gather(*talking)
            await self._judge_messages()
        finally:
            for one in talking:
                one.cancel()
            await asyncio.to_thread(self._gofer.stop)
            self._log.close()

    def _start(self) -> None:
        """The supervisor, with the source tree as the installed release."""
        installed = Release(build="installed", version="1", python=sys.executable)
        roles = {"web": 2, "worker": 1} if self._rolling else {"serve": 1}
        self._gofer.start(
            installed,
            environment={**self._scenario.environment, "GOFER_HOME": self._gofer.home.path},
            log=self._log,
            processes=roles,
            rolling=self._rolling,
            schema=migrations.newest(),
            canary=True,
            stop_within=15,
            ready_within=READY_WITHIN,
            probation=PROBATION,
            watchdog=60,
            max_memory=MAX_MEMORY,
        )

    async def _talk(self, room: str) -> None:
        """Somebody who writes all the time, and again until it is taken."""
        number = 0
        while not self._enough.is_set():
            number += 1
            before = len(self._scenario.acknowledged[room])
            await self._once(f"{room}-{number}", room)
            if len(self._scenario.acknowledged[room]) == before:
                self._tally.refused += self._strict
                await self._scenario.say(f"{room}-{number}", room, "hello?")
            await asyncio.sleep(0.2)

    async def _once(self, id_: str, room: str) -> None:
        """Send a message over a connection of its own; it counts if it is taken at once."""
        scenario = self._scenario
        body = b'{"id": "%s", "room": "%s", "from": "ada", "text": "hello?"}' % (id_.encode(), room.encode())
        scenario.service.rooms.add(room)
        url = f"http://127.0.0.1:{scenario.port}/hooks/{scenario.connection_id}"
        with contextlib.suppress(httpx2.TransportError):
            async with httpx2.AsyncClient(timeout=TIMEOUT) as client:
                answer = await client.post(url, content=body, headers=scenario.headers(body))
                if answer.is_success:
                    scenario.acknowledged[room].append(id_)

    # One deployment

    async def _deploy(self, number: int, kind: str, step: str, victim: str) -> None:
        tally, home = self._tally, self._gofer.home
        before = home.linked("good")
        build = await asyncio.to_thread(self._stage, kind, number)
        tally.deployments += 1
        tally.kinds[kind] += 1
        self._strict = self._rolling and step == "never"
        home.ask({"do": "deploy", "build": build, "by": "chaos"})
        what = f"{kind}, {victim} killed at {step}"
        if step != "never":
            await self._until(partial(self._is_at, build, step), f"{what}: never got there")
            tally.killed[victim] += 1
            await asyncio.to_thread(self._strike, victim)
        await self._until(lambda: home.asked() is None and self._gofer.trial() is None, f"{what}: no end")
        current = home.linked("current")
        right = (
            (before, build)
            if kind == "good" and victim == "release" and step != "never"
            else ((build,) if kind == "good" else (before,))
        )
        if current not in right or current != home.linked("good"):
            tally.complaints.append(f"{what}: {current} runs, {home.linked('good')} is good, was {before}")
        await self._until(self._serves, f"{what}: nobody answers")
        await self._until_read(partial(_runs, build=current), f"{what}: {current} did not start")
        self._strict = False
        await self._judge_notices(build, what)

    def _stage(self, kind: str, number: int) -> str:
        """A release of a kind, staged and approved as it would be if nobody had noticed."""
        place, added = FAULTS[kind]
        files = release_source()
        files[place] = files.get(place, b"") + added.format(number=number + 1).encode()
        source = self._folder / f"source-{number}"
        write_source(files, source)
        wheel, _ = build_release(source, self._folder / f"dist-{number}")
        home = self._gofer.home
        build = stage(home, wheel, compiled, unsigned=True).build
        approve(home, build, by="chaos")
        if kind == "cannot migrate" or number % 2:
            manifest = f"{home.path}/releases/{build}/manifest.json"
            write_json(manifest, {**home.manifest(build), "schema": OTHER_SCHEMA.format(number)})
        if kind == "tampered":
            file = Path(home.release(build).path[0], SERVE.removeprefix("platform/"))
            file.write_bytes(file.read_bytes().replace(b"e", b"E", 1))
        return build

    def _is_at(self, build: str, step: str) -> bool:
        trial = self._gofer.trial()
        if trial is None or trial["build"] != build:
            return self._gofer.home.asked() is None
        if trial["step"] == "prove":
            # A step that this deployment leaves out never comes.
            return step not in ("ready", "revert") or (step == "ready" and "ready" in trial)
        return bool(trial["step"] == step)

    def _strike(self, victim: str) -> None:
        pids = [pid for pid, _ in self._gofer.home.load().processes.values()]
        if victim != "release":
            self._gofer.kill()
        for pid in pids if victim != "supervisor" else ():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        if victim != "release":
            self._start()

    def _serves(self) -> bool:
        with contextlib.suppress(httpx2.HTTPError):
            return httpx2.get(f"http://127.0.0.1:{self._scenario.port}/healthz", timeout=60).is_success
        return False

    # The verdict

    async def _judge_notices(self, build: str, what: str) -> None:
        """The running release takes the supervisor's events into the log, and makes one notice of them."""
        with contextlib.suppress(TimeoutError):
            await self._until_read(partial(_notices_are, build=build, count=1), "", quiet=True)
        await asyncio.sleep(2.5)  # a second one would come with the next look
        found = await self._scenario.read(partial(_notices, build=build))
        if found != 1:
            self._tally.complaints.append(f"{what}: the owners were told {found} times")

    async def _judge_messages(self) -> None:
        scenario = self._scenario
        await self._until_read(_answered, "messages are not all answered")
        found = await scenario.findings()
        lists = (found.lost, found.doubled, found.out_of_order, found.held_twice, found.stranded)
        wrong = (one for some in lists for one in some)
        self._tally.complaints += [one for one in wrong if not any(kind in one for kind in MAY_WAIT)]
        self._tally.complaints += scenario.service.refused
        self._tally.messages = sum(len(ids) for ids in scenario.acknowledged.values())
        self._tally.replies = len(scenario.shown())
        if self._tally.refused:
            self._tally.complaints.append(
                f"{self._tally.refused} requests were refused while nothing was killed"
            )

    async def _until(self, true: Callable[[], bool], otherwise: str) -> None:
        deadline = Deadline(TIMEOUT)
        while not await asyncio.to_thread(true):
            if deadline.left <= 0:
                raise TimeoutError(otherwise)
            await asyncio.sleep(0.01)

    async def _until_read(
        self, true: Callable[[Connection], bool], otherwise: str, *, quiet: bool = False
    ) -> None:
        deadline = Deadline(30 if quiet else TIMEOUT)
        while not await self._scenario.read(true):
            if deadline.left <= 0:
                raise TimeoutError(otherwise)
            await asyncio.sleep(0.1)


def _runs(connection: Connection, build: str) -> bool:
    """Whether the last process that started is of a release."""
    query = select(events.c.data).where(events.c.kind == "process.started").order_by(events.c.id.desc())
    last = connection.execute(query.limit(1)).scalar()
    return last is not None and last.get("build") == build


def _notices(connection: Connection, build: str) -> int:
    found = connection.execute(select(jobs.c.payload).where(jobs.c.kind == "release_notice")).scalars()
    ours = [one for one in found if "room" not in one and str(one.get("kind")).startswith("revision.")]
    return sum(one.get("build") == build for one in ours)


def _notices_are(connection: Connection, build: str, count: int) -> bool:
    return _notices(connection, build) == count


def _answered(connection: Connection) -> bool:
    at_work = in_state(*LIVE), jobs.c.kind.in_(("answer", "deliver"))
    return connection.execute(select(jobs.c.id).where(*at_work).limit(1)).first() is None
