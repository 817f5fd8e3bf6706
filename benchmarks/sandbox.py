"""The sandbox as it ships (filter, limits and snapshot on) beside its floors and its peers, in one run.

Run alone: `python -m benchmarks.sandbox [--quick]`.
"""

from __future__ import annotations

import asyncio
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

from benchmarks.report import Row, table
from benchmarks.sandbox_peers import PEERS, Figures
from gofer_sandbox import Bubblewrap, Limits, Sandbox, processes
from gofer_sandbox.bubblewrap import arguments
from gofer_sandbox.spares import Spares

GROUP = "sandbox"
_PAUSE = 0.003
"""Between commands; a model thinks longer. Floors are measured with the same pause, for a machine that has slept
is slower for all; only the first is back to back as well, the strictest there is."""
_RESTED = 2.5
"""Seconds after which a session has let go of what only saves time."""
_TURNS = 5
"""Of what is compared: the machine is another from one second to the next."""


def percentile(times: list[float], share: float) -> float:
    """The value that share of the times do not exceed."""
    return sorted(times)[max(0, math.ceil(len(times) * share) - 1)]


def pipe_floor(
    rounds: int, command: bytes, cores: tuple[int, int] | None = None, pause: float = _PAUSE
) -> list[float]:
    """Each write to a running bash and the read of its answer: nothing can be faster."""
    own = os.sched_getaffinity(0)
    bash = subprocess.Popen(["bash", "--norc"], stdin=subprocess.PIPE, stdout=subprocess.PIPE)
    assert bash.stdin
    assert bash.stdout
    into, out, times = bash.stdin.fileno(), bash.stdout.fileno(), []
    try:
        if cores:
            os.sched_setaffinity(0, {cores[0]})
            os.sched_setaffinity(bash.pid, {cores[1]})
        for _ in range(rounds):
            began = time.perf_counter()
            os.write(into, command + b"; echo $?\n")
            os.read(out, 100)
            times.append(time.perf_counter() - began)
            time.sleep(pause)
    finally:
        os.sched_setaffinity(0, own)
        bash.kill()
        bash.communicate()
    return times


def spawned(arguments: list[str], **options: object) -> float:
    """How long a process takes from start to end."""
    time.sleep(_PAUSE)
    began = time.perf_counter()
    subprocess.run(arguments, check=True, stdin=subprocess.DEVNULL, **options)  # type: ignore[call-overload]
    return time.perf_counter() - began


async def timed_commands(sandbox: Sandbox, command: str, rounds: int) -> list[float]:
    """Each command's time, with a pause between."""
    times = []
    for _ in range(rounds):
        began = time.perf_counter()
        await sandbox.run(command)
        times.append(time.perf_counter() - began)
        await asyncio.sleep(_PAUSE)
    return times


async def fresh_bwrap(provider: Bubblewrap) -> Callable[[str], float]:
    """Starts bubblewrap as a session would, for one command: `true` or another."""
    probe = await provider._probed()
    assert probe.bwrap
    assert probe.etc
    options = [*arguments.isolation(), *arguments.system(probe.etc), *arguments.devices(Limits(), probe.etc)]
    drop = {"user": 65534, "group": 65534, "extra_groups": []} if os.geteuid() == 0 else {}
    path = ["--setenv", "PATH", "/usr/bin:/bin", "--remount-ro", "/dev", "--remount-ro", "/"]
    return lambda command: spawned([str(probe.bwrap), *options, *path, *command.split()], env={}, **drop)


async def commands(rounds: int, provider: Bubblewrap) -> tuple[list[Row], float]:
    """What one command costs, in turns with its floors so that all see the same machine."""
    fresh, last = await fresh_bwrap(provider), (os.cpu_count() or 1) - 1
    found: dict[str, list[float]] = defaultdict(list)
    each, fewer = rounds // _TURNS, max(1, rounds // _TURNS // 20)
    async with Sandbox(provider) as sandbox:
        await timed_commands(sandbox, "true", 20)
        for _ in range(_TURNS):
            found["ours"] += await timed_commands(sandbox, "true", each)
            found["external"] += await timed_commands(sandbox, "/bin/true", each // 4)
            found["same"] += pipe_floor(each, b"true", (0, 0), pause=0)
            found["rested"] += pipe_floor(each, b"true", (0, 0))
            found["cross"] += pipe_floor(each, b"true", (0, last))
            found["hot"] += pipe_floor(each, b"true", (0, last), pause=0)
            found["forked"] += pipe_floor(each // 4, b"/bin/true")
            found["bash"] += [spawned(["bash", "-c", "true"]) for _ in range(fewer)]
            found["bwrap"] += [fresh("bash -c true") for _ in range(fewer)]
    at = {name: statistics.median(times) for name, times in found.items()}
    ours = at["ours"]
    rows = [
        _row("true, median", ours, "raw pipe, same core, back to back", at["same"], at_most=10),
        _row("true, median", ours, "raw pipe, same core", at["rested"]),
        _row("true, median", ours, "raw pipe, across cores", at["cross"], at_most=5),
        _row("true, median", ours, "raw pipe, across cores, back to back", at["hot"]),
        _row("true, 99 of 100", percentile(found["ours"], 0.99), "its median", ours, at_most=3),
        _row("true, median", ours, "fresh bash -c", at["bash"]),
        _row("true, median", ours, "fresh bwrap bash -c", at["bwrap"], at_most=1 / 30),
        _row("/bin/true, median", at["external"], "bash's own fork and exec", at["forked"], at_most=1.7),
    ]
    return rows, ours


async def creation(rounds: int, provider: Bubblewrap) -> tuple[list[Row], float]:
    """What a session costs to make, interleaved with its floor so that both see the same machine."""
    fresh = await fresh_bwrap(provider)
    made, floors = [], []
    for _ in range(rounds):
        floors.append(fresh("true"))
        sandbox = Sandbox(provider)
        await asyncio.sleep(_PAUSE)
        began = time.perf_counter()
        await sandbox.start()
        made.append(time.perf_counter() - began)
        await sandbox.close()
    adopted = await adoption(rounds, provider)
    ours, floor = statistics.median(made), statistics.median(floors)
    rows = [
        _row("a new session", ours, "fresh bwrap true", floor, at_most=1.4),
        _row("a new session from a spare", adopted, "fresh bwrap true", floor, at_most=0.3),
    ]
    return rows, ours


async def adoption(rounds: int, provider: Bubblewrap) -> float:
    """How long a new session takes when one was made ahead."""
    with tempfile.TemporaryDirectory() as place:
        folder, times = Path(place), []
        folder.chmod(0o755)
        spares = Spares(provider, folder, 1, idle=lambda: True)
        spares.start()
        for number in range(rounds):
            while not spares.ready:
                await asyncio.sleep(_PAUSE)
            began = time.perf_counter()
            sandbox = await spares.take(folder / str(number))
            times.append(time.perf_counter() - began)
            assert sandbox
            assert (await sandbox.run("true")).ok
            await sandbox.close()
        await spares.close()
    return statistics.median(times)


async def density(count: int, provider: Bubblewrap) -> list[Row]:
    """Many sessions at once: memory of each, and a command in all of them."""
    sandboxes = [Sandbox(provider) for _ in range(count)]
    slots = asyncio.Semaphore(8)

    async def start(sandbox: Sandbox) -> None:
        async with slots:
            await sandbox.start()

    before = len(os.listdir("/proc/self/fd"))
    began = time.perf_counter()
    await asyncio.gather(*map(start, sandboxes))
    starting = time.perf_counter() - began
    await asyncio.sleep(_RESTED)
    held = (len(os.listdir("/proc/self/fd")) - before) / count
    memory = statistics.mean(_share(sandbox) for sandbox in sandboxes[:50])
    began = time.perf_counter()
    results = await asyncio.gather(*(sandbox.run("echo $$") for sandbox in sandboxes))
    everywhere = time.perf_counter() - began
    assert all(result.ok for result in results)
    await asyncio.gather(*(sandbox.close() for sandbox in sandboxes))
    return [
        Row(GROUP, f"memory of an idle session, {count} at once", memory / 1e6, "MB", at_most=0.7),
        Row(GROUP, "descriptors of the server for each of them", held, "", at_most=3),
        Row(GROUP, f"{count} sessions started", starting, "s"),
        Row(GROUP, f"echo in all {count} at once, each", everywhere / count * 1e3, "ms"),
    ]


def _share(sandbox: Sandbox) -> int:
    """The proportional set size of everything a session has running, bubblewrap's own process included."""
    keeper = sandbox.record.reference.pid
    ours = processes.child_of_ours(keeper) or keeper  # bubblewrap, while it is there
    pids = {keeper, *processes.descendants(keeper), ours}
    total = 0
    for pid in pids:
        lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        total += sum(int(line.split()[1]) * 1024 for line in lines if line.startswith("Pss:"))
    return total


async def output(size: int, rounds: int, provider: Bubblewrap) -> list[Row]:
    """A lot of output, capped, in turns with reading a pipe and throwing it away. What varies is the
    latter: from 0.5 to 1.7 GB/s within one run on two processors, where ours stays at about 0.8."""
    command = f"yes 'a line of text of some length' | head -c {size}"
    ours, floors = [], []
    async with Sandbox(provider, limits=Limits(cpus=float(os.cpu_count() or 1))) as sandbox:
        for _ in range(rounds):
            floors.append(size / thrown_away(command) / 1e6)
            ours.append(size / (await sandbox.run(command)).duration / 1e6)
    name = f"{size // 1_000_000} MB of output"
    read = statistics.median(floors)
    return [Row(GROUP, name, statistics.median(ours), "MB/s", "a raw read loop", read, at_least=0.8)]


def thrown_away(command: str) -> float:
    """How long it takes to read what a command prints and to keep nothing of it."""
    began = time.perf_counter()
    with subprocess.Popen(["bash", "-c", command], stdout=subprocess.PIPE) as raw:
        assert raw.stdout
        while os.read(raw.stdout.fileno(), 1 << 17):
            pass
    return time.perf_counter() - began


async def recovery(rounds: int, provider: Bubblewrap) -> list[Row]:
    """Coming back: after the shell's death, after the server's, and after a deadline."""
    deaths, attached, late, fresh = [], [], [], []
    for _ in range(rounds):
        fresh.append(spawned(["bash", "-c", "true"]))
        sandbox = Sandbox(provider)
        await sandbox.start()
        await sandbox.run("x=1")
        began = time.perf_counter()
        await sandbox.run("exit 3")
        deaths.append(time.perf_counter() - began)
        late.append((await sandbox.run("sleep 9", timeout=0.1)).duration - 0.1)
        record = sandbox.record
        await sandbox.detach()
        began = time.perf_counter()
        again = await Sandbox.attach(record, provider)
        attached.append(time.perf_counter() - began)
        await again.close()
    death, bash = statistics.median(deaths), statistics.median(fresh)
    return [
        _row("shell's death to the next shell", death, "fresh bash -c", bash, at_most=2),
        Row(GROUP, "attach by another server", statistics.median(attached) * 1e3, "ms", at_most=2),
        Row(GROUP, "return after the deadline", statistics.median(late) * 1e3, "ms", at_most=20),
    ]


def peers(rounds: int, command: float, create: float) -> list[Row]:
    """The same in other projects' sessions, which are not sandboxed."""
    rows = []
    for peer in PEERS:
        found = peer.measure(rounds)
        if isinstance(found, Figures):
            rows.append(_row("true, median", command, peer.name, found.command, at_most=1 / 300))
            rows.append(_row("a new session", create, peer.name, found.create, at_most=1 / 30))
        else:
            rows.append(Row(GROUP, "true, median", command * 1e3, "ms", peer.name, note=found))
    return rows


def _row(name: str, seconds: float, against: str, reference: float, *, at_most: float | None = None) -> Row:
    return Row(GROUP, name, seconds * 1e3, "ms", against, reference * 1e3, at_most=at_most)


async def main(quick: bool = False) -> list[Row]:
    """Every figure of the sandbox."""
    provider = Bubblewrap()
    await provider.probe()
    rows, command = await commands(400 if quick else 1000, provider)
    made, create = await creation(5 if quick else 40, provider)
    rows += made
    rows += await recovery(3 if quick else 20, provider)
    rows += await output(*((20_000_000, 1) if quick else (100_000_000, 7)), provider)
    rows += await density(100 if quick else 500, provider)
    return rows + await asyncio.to_thread(peers, 5 if quick else 30, command, create)


if __name__ == "__main__":
    print(table(asyncio.run(main("--quick" in sys.argv))))
