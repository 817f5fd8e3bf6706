"""Every page on Postgres: the queries are other ones there."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.web_server import Browser

from .places import places
from .seed_data import lived_in

FILTERS = (
    "/runs?state=done&kind=all",
    "/runs?state=waiting&agent=none&connection=none",
    "/runs?conversation=none&before=99",
    "/runs/new?after=1",
    "/inbox?connection=none&before=99",
    "/conversations?connection=none&before=99",
    "/audit?name=owner&before=99",
    *(f"/costs?by={by}&days={days}" for by, days in (("agent", 7), ("source", 30), ("model", 90))),
    "/logs?level=info&q=x",
)


@pytest.mark.slow
def test_every_page_is_shown_on_postgres(data_dir: Path, postgres_url: str) -> None:
    with lived_in(data_dir, database_url=postgres_url, sandbox="unconfined") as lived:
        browser: Browser = lived.house.browser()
        browser.follow(lived.house.link(lived.house.owner()))
        answers = {
            path: browser.get(path, follow_redirects=True).status_code
            for path in (*places(lived).values(), "/chat", "/welcome", "/welcome/checks", "/docs", *FILTERS)
        }
        assert answers.pop(places(lived)["missing"]) == 404
        assert {path: status for path, status in answers.items() if status != 200} == {}
