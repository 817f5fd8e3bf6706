"""The agent: its own work per turn and per tool call beside its peers', and how it bears history and company.

Gofer runs as it ships: every event of a run is on disk, sealed, before the run goes on. mini-swe-agent keeps a run in
memory, or writes it out after each turn; nanobot keeps its sessions in files.
"""

from __future__ import annotations

import asyncio
import json
import statistics
import sys
import time

from benchmarks.agent_ours import TOOLS, Scripted, bench
from benchmarks.agent_peers import PEERS, Times
from benchmarks.report import Row

GROUP = "agent"
TURNS = len(TOOLS) + 1
HISTORIES = (10, 1_000, 10_000)
RECALLS = 300
AT_ONCE = 200
SLOW = 0.5
"""Seconds the slow model takes for a turn."""


async def main(quick: bool) -> list[Row]:
    """The figures."""
    rows = await _overhead(2 if quick else 5, 20 if quick else 50)
    rows += await _history(10 if quick else 40)
    rows.append(await _after_recalls(10 if quick else 40))
    rows.append(await _idle(200 if quick else 1_000))
    rows.append(await _together())
    return rows


async def _overhead(rounds: int, tasks: int) -> list[Row]:
    """Contenders in turn, the best round of each: what disturbs a round only makes it slower."""
    ours: list[Times] = []
    theirs: dict[str, list[Times]] = {peer.name: [] for peer in PEERS}
    why: dict[str, str] = {}
    for _ in range(rounds):
        ours.append(await _ours(tasks))
        for peer in PEERS:
            measured = await asyncio.to_thread(peer.drive, tasks)
            if isinstance(measured, Times):
                theirs[peer.name].append(measured)
            else:
                why[peer.name] = measured
    best = _best(ours)
    return [
        row for peer in PEERS for row in _beside(best, peer.name, theirs[peer.name], why.get(peer.name, ""))
    ]


async def _ours(tasks: int) -> Times:
    model = Scripted()
    whole, answer = [], []
    async with bench(model) as made, made.working():
        await made.ask("first")
        for number in range(tasks):
            model.calls = len(TOOLS)
            whole.append(await made.ask(f"task {number}"))
            model.calls = 0
            answer.append(await made.ask(f"answer {number}"))
    return Times(statistics.median(whole), statistics.median(answer))


def _best(times: list[Times]) -> Times:
    return Times(min(one.whole for one in times), min(one.answer for one in times))


def _beside(ours: Times, name: str, times: list[Times], why: str) -> list[Row]:
    """A call's share is what a task with calls takes more than an answer without one, the call's turn included."""
    theirs = _best(times) if times else None
    against = name if theirs else f"{name} ({why})"
    return [
        Row(
            *(GROUP, "own work per turn, three-tool task", _per_turn(ours), "ms"),
            against,
            _per_turn(theirs) if theirs else None,
        ),
        Row(
            *(GROUP, "own work per tool call and its turn", _per_call(ours), "ms"),
            against,
            _per_call(theirs) if theirs else None,
        ),
    ]


def _per_turn(times: Times) -> float:
    return times.whole / TURNS * 1000


def _per_call(times: Times) -> float:
    return (times.whole - times.answer) / len(TOOLS) * 1000


async def _history(rounds: int) -> list[Row]:
    """The same task in conversations of different lengths, in turn. The first run of each is apart: it may have
    to make a summary, which later ones go on from."""
    times: dict[int, list[float]] = {count: [] for count in HISTORIES}
    async with bench(Scripted()) as made:
        for count in HISTORIES:
            await made.remember(f"room {count}", count)
        async with made.working():
            first = {count: await made.ask(f"room {count}") for count in HISTORIES}
            for _ in range(rounds):
                for count in HISTORIES:
                    times[count].append(await made.ask(f"room {count}"))
    short, *longer = HISTORIES
    base = statistics.median(times[short])
    return [
        Row(
            *(
                GROUP,
                f"per turn, {count:,} messages before",
                statistics.median(times[count]) / TURNS * 1000,
                "ms",
            ),
            *(f"{short} messages", base / TURNS * 1000),
            at_most=1.3,
            note=f"the first run took {first[count] * 1000:.0f} ms, with {short} messages {first[short] * 1000:.0f} ms",
        )
        for count in longer
    ]


async def _after_recalls(rounds: int) -> Row:
    """The same task in a conversation of 10,000 messages whose runs have recalled 300 times, and in a new one."""
    model = Scripted()
    old, new = list[float](), list[float]()
    async with bench(model) as made:
        await made.remember("old room", 10_000)
        async with made.working():
            model.recalls = RECALLS // 30
            for _ in range(30):
                await made.ask("old room")
            model.recalls = 0
            await made.ask("warm room")
            for number in range(rounds):
                old.append(await made.ask("old room"))
                new.append(await made.ask(f"new room {number}"))
    took, floor = statistics.median(old) / TURNS * 1000, statistics.median(new) / TURNS * 1000
    name = f"per turn, 10,000 messages and {RECALLS} recalls before"
    return Row(*(GROUP, name, took, "ms"), "a new conversation", floor, at_most=1.5)


async def _idle(count: int) -> Row:
    """In a process of its own, since this one has grown by other things."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "benchmarks.agent_ours", str(count)), stdout=asyncio.subprocess.PIPE
    )
    said, _ = await process.communicate()
    return Row(GROUP, f"memory per idle conversation, {count} of them", json.loads(said) / 1000, "kB")


async def _together() -> Row:
    """From the worker's start on a full queue to the last end that is written."""
    async with bench(Scripted(SLOW)) as made:
        await made.hear([f"room {number}" for number in range(AT_ONCE)])
        began = time.perf_counter()
        async with made.working(slots=AT_ONCE) as worker:
            await made.answered(AT_ONCE)
            while worker.running:
                await asyncio.sleep(0.005)
            took = time.perf_counter() - began
    return Row(GROUP, f"{AT_ONCE} conversations at once", took, "s", "the slow model alone", TURNS * SLOW)
