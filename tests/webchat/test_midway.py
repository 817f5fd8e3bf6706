"""Coming in the middle of an answer: all of it so far is there, and the rest follows without a gap or a repeat."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from browser.seed_data import KEY, Service, slowly
from gofer_standins.anthropic import Reply, call, calls
from support.web_server import House
from webchat.visiting import Line, Visit

ANSWER = " ".join(f"Sentence number {number} of a long answer." for number in range(40))


def script(gate: Path, request: Mapping[str, Any]) -> Reply:
    """A command that prints slowly, and the rest once there is a file at the gate; then a long answer, slowly."""
    last = str(request["messages"][-1])
    if "printed" in last or "at once" in last:
        return slowly(ANSWER)
    waits = f"((i != 2)) || until [ -e {gate} ]; do sleep 0.1; done"
    return calls(call("bash", command=f"for i in 1 2 3 4 5 6; do echo printed $i; {waits}; sleep 0.1; done"))


def gate_of(data_dir: Path) -> Path:
    return data_dir.parent / "gate"


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house") / "data"
    folder.mkdir(mode=0o700)
    service = Service(partial(script, gate_of(folder)))
    house = House(folder, sandbox="unconfined", anthropic_key=KEY, anthropic_base_url=service.url)
    yield house
    house.close()
    service.close()


def fresh_page(visit: Visit) -> Visit:
    return Visit(visit.house, visit.member_id, visit.room)


def grows_to_the_answer(line: Line, least: int) -> None:
    """From here on, what is shown is always a beginning of the answer, at least so long, and becomes it."""
    seen: list[str] = []

    def whole() -> bool:
        seen.extend(line.saying.values())
        return line.state == "idle" and bool(line.of("reply"))

    line.until(lambda: line.saying)
    assert len(line.saying) == 1
    line.until(whole)
    assert all(ANSWER.startswith(words) for words in seen)
    assert len(seen[0]) >= least
    assert seen == sorted(seen, key=len)
    # The last letters may be held back until it is sure that no secret begins with them.
    assert len(seen[-1]) > len(ANSWER) * 0.9
    assert ANSWER in line.of("reply")[0]


def test_who_comes_in_the_middle_of_an_answer_sees_all_of_it(visit: Visit) -> None:
    with visit.line() as line, contextlib.ExitStack() as late:
        line.say("Say it at once")
        had = line.until(lambda: next((len(text) for text in line.saying.values() if len(text) > 300), 0))
        opened = late.enter_context(fresh_page(visit).line())
        again = late.enter_context(visit.line(line.cursor))
        grows_to_the_answer(opened, had)
        grows_to_the_answer(again, had)
        grows_to_the_answer(line, 0)
    with fresh_page(visit).line() as after:
        after.until(lambda: after.frames)
        assert after.saying == {}, "it is in the history"


def test_also_where_no_socket_passes(visit: Visit) -> None:
    line = Line(None)  # type: ignore[arg-type]
    with visit.line() as first:
        first.say("Say it at once")
        had = first.until(lambda: next((len(text) for text in first.saying.values() if len(text) > 300), 0))
        place = {"last-event-id": first.cursor}
        with visit.browser.client.stream("GET", f"/chat/{visit.room}/live", headers=place) as stream:
            rows = (json.loads(row[6:]) for row in stream.iter_lines() if row.startswith("data: "))
            line.until = lambda wanted: next(  # type: ignore[method-assign]
                found for _ in iter(lambda: line.take(next(rows)), 0) if (found := wanted())
            )
            grows_to_the_answer(line, had)


def printed(line: Line) -> str:
    """What a command printed, however it was cut into frames."""
    return "".join(frame["text"] for frame in line.frames if frame["type"] == "output")


def test_who_comes_while_a_command_runs_sees_what_it_has_printed(visit: Visit) -> None:
    with visit.line() as line:
        line.say("Count")
        line.until(lambda: "printed 2" in printed(line))
        with fresh_page(visit).line() as late:
            frame = late.until(lambda: next((f for f in late.frames if f["type"] == "output"), None))
            assert frame["whole"]
            assert frame["text"].startswith("printed 1\nprinted 2")
            gate_of(visit.house.settings.data_dir).touch()
            late.until(lambda: "printed 5" in printed(late))
            rest = [frame for frame in late.frames if frame["type"] == "output"]
            assert [frame["whole"] for frame in rest] == [True] + [False] * (len(rest) - 1)
            assert "".join(frame["text"] for frame in rest).count("printed 2") == 1
        line.answers()
