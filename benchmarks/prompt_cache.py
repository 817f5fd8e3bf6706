"""The prompt cache: how much of a long run's prompt is read from it, and what the run costs, by the size of results.

Sixty calls of a tool whose result has a given size, up to the size at which results are cut. The provider's stand-in
counts reads and writes from the cache marks. Beside it, the same run with the rule of before: clear whatever 5,000
tokens of old results there are beyond the last four rounds.
"""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

from benchmarks.agent_ours import bench
from benchmarks.report import Row
from gofer.agent.context import result_size
from gofer.agent.context.compressor import PlainCompressor
from gofer.agent.context.operations import evict
from gofer.agent.interfaces import Point
from gofer.agent.model import Features, ModelEvent, ModelRequest, Usage
from gofer.agent.models.anthropic import StreamedAnswer, parameters
from gofer.agent.models.catalogue import AUTO
from gofer.agent.prices import MICROS, load_prices
from gofer.agent.state import State
from gofer.runs import build
from gofer_standins.anthropic import Anthropic, Reply, call, calls, say

GROUP = "prompt cache"
TURNS = 60
SIZES = (1_000, 2_000, 4_000, 6_000, 8_000, 12_000, 16_000, 20_000, 23_900)
QUICK = (4_000, 8_000, 23_900)
SUMMARY = "Goal: g\nConstraints: c\nProgress: p\nDecisions: d\nNext steps: n\nFiles: f"


class Reader:
    """A model that looks at one thing after another, and then answers. Its service keeps the books."""

    name = AUTO
    context_window = 1_000_000
    features = Features()

    def __init__(self) -> None:
        self.service = Anthropic(self._script)
        self._done = 0

    def _script(self, request: Mapping[str, Any]) -> Reply:
        if not request.get("tools"):
            return say(SUMMARY)
        self._done += 1
        return calls(call("bash", command=f"cat {self._done}")) if self._done <= TURNS else say("Done.")

    async def stream(self, request: ModelRequest) -> AsyncIterator[ModelEvent]:
        body = json.loads(json.dumps(parameters(request, AUTO.partition("/")[2])))
        if found := self.service.check(body):
            raise RuntimeError("; ".join(found))
        answer = StreamedAnswer(self.name)
        for event in self.service.events(body, self.service.next(body)):
            answer.take(event)
        yield answer.turn()

    @property
    def dollars(self) -> float:
        price = load_prices().of(AUTO)
        assert price is not None
        return sum(price.cost(_usage(one)) for one in self.service.usage) / MICROS


def _usage(counted: Mapping[str, int]) -> Usage:
    return Usage(
        input=counted["input_tokens"],
        cache_read=counted["cache_read_input_tokens"],
        cache_write=counted["cache_creation_input_tokens"],
        output=counted["output_tokens"],
    )


class Before(PlainCompressor):
    """The rule of before."""

    def _clear(self, state: State, size: int) -> list[Point]:
        last = max(state.kept_from, len(state.rounds) - 4)
        calls = [call for round_ in state.rounds[state.kept_from : last] for call in round_.calls]
        big = [call for call in calls if call.id not in state.cleared and result_size(call, state) > 100]
        if sum(result_size(call, state) for call in big) < 5_000:
            return []
        return [evict(big, self._memories)]


@contextmanager
def _with(compressor: type[PlainCompressor]) -> Iterator[None]:
    build.PlainCompressor = compressor  # type: ignore[attr-defined]
    try:
        yield
    finally:
        build.PlainCompressor = PlainCompressor  # type: ignore[attr-defined]


async def _read(size: int, compressor: type[PlainCompressor]) -> Reader:
    reader = Reader()
    line = b"the quick brown fox jumps over the lazy dog, and once more over it.\n"
    output = (line * (size // len(line) + 1))[:size]
    with _with(compressor):
        async with bench(reader, output) as made, made.working():
            await made.ask(f"results of {size}")
    return reader


async def main(quick: bool) -> list[Row]:
    """The figures."""
    rows = []
    for size in QUICK if quick else SIZES:
        ours, before = await _read(size, PlainCompressor), await _read(size, Before)
        share = ours.service.cache_read_share
        least = 0.9 if size == 8_000 else 0.85
        name = f"{TURNS} results of {size / 1000:g} kB"
        was = f"before: {before.service.cache_read_share:.1%}"
        rows.append(Row(GROUP, f"share read, {name}", share, "", at_least=least, note=was))
        rows.append(
            Row(GROUP, f"cost, {name}", ours.dollars, "$", "the rule of before", before.dollars, at_most=1)
        )
    return rows
