"""Strangers who try to fill the log: what they are refused is told a few times, then counted."""

from __future__ import annotations

import asyncio
import time

import httpx2
import pytest

from gofer.web import app as web
from support.patience import Deadline
from support.web_server import House

MANY = 200


def lines_of(said: str, event: str) -> list[str]:
    return [line for line in said.splitlines() if f" {event} " in line and "/healthz" not in line]


def told_until(capfd: pytest.CaptureFixture[str], event: str, count: int) -> list[str]:
    """The lines of an event; a request's is written when its answer is out already."""
    found: list[str] = []
    deadline = Deadline(10)
    while len(found) < count and deadline.left > 0:
        found += lines_of("".join(capfd.readouterr()), event)
        time.sleep(0.02)
    return found


def a_new_window(stranger: httpx2.Client, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.setattr(web, "WINDOW", 0.0)
    stranger.post(path) if path.startswith("/hooks/") else stranger.get(path)
    all_noted(stranger)
    monkeypatch.setattr(web, "WINDOW", 3600.0)


def all_noted(stranger: httpx2.Client) -> None:
    """A request is noted after its answer is out, and before the server reads the next one of the connection."""
    assert stranger.get("/healthz").status_code == 200


def test_refused_webhooks_are_told_a_few_times_and_then_counted(
    house: House, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = house.browser().client
    a_new_window(stranger, monkeypatch, "/hooks/nobody")
    capfd.readouterr()
    for number in range(MANY):
        assert stranger.post("/hooks/nobody" if number % 2 else f"/hooks/nobody{number}").status_code == 401
    all_noted(stranger)
    told = len([line for line in lines_of("".join(capfd.readouterr()), "request") if "/hooks/" in line])
    assert told <= web.MAX_LINES_OF_ADDRESS
    # Whom we know is always told of, and so is what goes well.
    owner = house.api(house.token(house.owner()))
    for _ in range(3):
        assert owner.get("/jobs/987654321").status_code == 404
        assert stranger.get("/login").status_code == 200
    assert len(told_until(capfd, "request", 6)) == 6
    monkeypatch.setattr(web, "WINDOW", 0.0)
    stranger.post("/hooks/nobody")
    (summary,) = told_until(capfd, "request.refused_many", 1)
    assert f"count={MANY - told}" in summary
    assert "127.0.0.1" in summary


def test_nor_do_pages_that_anybody_may_see_fill_the_log(
    house: House, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stranger = house.browser().client
    a_new_window(stranger, monkeypatch, "/login")
    capfd.readouterr()
    for _ in range(MANY):
        assert stranger.get("/login").status_code == 200
    all_noted(stranger)
    told = len([line for line in lines_of("".join(capfd.readouterr()), "request") if "/login" in line])
    assert 0 < told <= web.MAX_LINES_OF_PATH
    monkeypatch.setattr(web, "WINDOW", 0.0)
    stranger.get("/login")
    (summary,) = told_until(capfd, "request.many", 1)
    assert f"count={MANY - told}" in summary


async def test_a_window_is_not_ended_by_the_timer_of_the_one_before(monkeypatch: pytest.MonkeyPatch) -> None:
    lines = web.StrangersLines(None, "request.many")

    def told() -> int:
        return sum(lines.may_tell({"type": "http"}, "/login") for _ in range(MANY))

    monkeypatch.setattr(web, "WINDOW", 0.05)
    told()
    monkeypatch.setattr(web, "WINDOW", 0.0)
    lines.may_tell({"type": "http"}, "/login")
    monkeypatch.setattr(web, "WINDOW", 3600.0)
    told()
    await asyncio.sleep(0.1)
    assert told() == 0
