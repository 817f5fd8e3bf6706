"""The Python client, and the examples of docs/api.md as they stand there."""

from __future__ import annotations

import re
import select
import socket
import threading
from pathlib import Path

import pytest

from gofer.client import Gofer, GoferProblem, Unreachable
from gofer.client.models import Gone, Member
from support.web_server import House

PAGE = (Path(__file__).parents[3] / "docs" / "api.md").read_text(encoding="utf-8")
EXAMPLES = re.findall(r"```python\n(.*?)```", PAGE, re.S)


@pytest.fixture(scope="module")
def token(house: House) -> str:
    return house.token(house.owner())


@pytest.mark.parametrize("number", range(len(EXAMPLES)))
def test_the_examples_of_the_documentation_run(
    house: House, token: str, number: int, capsys: pytest.CaptureFixture[str]
) -> None:
    exec(
        compile(EXAMPLES[number], f"docs/api.md example {number}", "exec"), {"URL": house.url, "TOKEN": token}
    )
    assert number == 2 or capsys.readouterr().out


def test_an_answer_comes_back(house: House, token: str) -> None:
    with Gofer(house.url, token=token) as gofer:
        assert "offline" in gofer.ask("What can you do?")
        said = gofer.say("and again")
        assert gofer.wait(said.job_id or 0) == "done"
        (mine,) = [each for each in gofer.messages(said.conversation_id) if each.text == "and again"]
        assert mine.trust == "owner"
        assert said.job_id in [job.id for job in gofer.jobs(conversation=said.conversation_id)]
        assert gofer.status().jobs is not None
        assert gofer.costs().total == 0


def test_a_problem_has_the_servers_words(house: House, token: str) -> None:
    with Gofer(house.url, token=token) as gofer:
        with pytest.raises(GoferProblem, match="no job") as caught:
            gofer.job(987654321)
        assert (caught.value.status, caught.value.code) == (404, "not_found")
        with pytest.raises(GoferProblem, match="no job"):
            next(gofer.follow(job=987654321))
    with Gofer(house.url, token="gofer_wrong") as stranger, pytest.raises(GoferProblem, match="unknown"):
        stranger.me()


def test_nobody_there_is_said(token: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
    with Gofer(f"http://127.0.0.1:{port}", token=token) as gofer, pytest.raises(Unreachable):
        gofer.me()


def test_an_answer_that_was_lost_is_asked_for_again_and_done_once(house: House, token: str) -> None:
    """Through a line that breaks after the first request has reached the server."""
    port = int(house.url.rpartition(":")[2])
    with socket.create_server(("127.0.0.1", 0)) as line:
        carrying = threading.Thread(target=_carry, args=(line, port))
        carrying.start()
        with Gofer(f"http://127.0.0.1:{line.getsockname()[1]}", token=token) as gofer:
            made = gofer.call("POST", "/members", Member, body={"name": "lost-and-found"})
            gofer.call("DELETE", f"/members/{made.id}", Gone)
        line.shutdown(socket.SHUT_RDWR)
        carrying.join()


def _carry(line: socket.socket, port: int) -> None:
    """Pass on what comes, one connection at a time; the first answer is dropped with its connection."""
    lost = False
    while True:
        try:
            near, _ = line.accept()
        except OSError:
            return
        with near, socket.create_connection(("127.0.0.1", port)) as far:
            while True:
                ready, _, _ = select.select([near, far], [], [])
                data = ready[0].recv(65536)
                if not data or (ready[0] is far and not lost):
                    lost = lost or bool(data)
                    break
                (far if ready[0] is near else near).sendall(data)
