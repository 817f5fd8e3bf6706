"""The same doors on Postgres: what is done once, counted and followed there."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from sqlalchemy import Connection

from gofer.client import Gofer
from gofer.identity import WEB_CHAT, link, new_link
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.web.auth import login_throttle
from support.web_server import House


def known_elsewhere(connection: Connection, member_id: str) -> None:
    """Who is a person of another service, too, may have private conversations there."""
    code = new_link(connection, workspace_id=FIRST_WORKSPACE, integration=WEB_CHAT, subject=member_id)
    person = {"integration": "telegram", "subject": "7", "code": code or ""}
    assert link(connection, workspace_id=FIRST_WORKSPACE, connection_id=WEB_CHAT, **person)


def test_signing_in_repeating_and_following_on_postgres(data_dir: Path, postgres_url: str) -> None:
    house = House(data_dir, database_url=postgres_url)
    try:
        ada = house.member("ada", "owner")
        way_in = house.link(ada)
        browsers = [house.browser() for _ in range(4)]
        with ThreadPoolExecutor(4) as pool:
            followed = sorted(pool.map(lambda each: each.follow(way_in).status_code, browsers))
        assert followed == [303, 410, 410, 410]
        token = house.token(ada)
        apis = [house.api(token) for _ in range(4)]
        wish, key = {"name": "bob"}, {"idempotency-key": "bob"}
        with ThreadPoolExecutor(4) as pool:
            made = list(pool.map(lambda api: api.post("/members", json=wish, headers=key).status_code, apis))
        assert 201 in made
        assert set(made) <= {201, 409}
        (entry, *_) = apis[0].get("/audit", params={"action": "members.add"}).json()["entries"]
        assert entry["name"] == "ada"
        with Gofer(house.url, token=token) as gofer:
            said = gofer.say("What can you do?")
            seen = [event.seq for event in gofer.follow(job=said.job_id)]
            assert seen == list(range(1, len(seen) + 1))
            assert gofer.job(said.job_id or 0).job.state == "done"
        otto, browser = house.member("otto", "operator"), house.browser()
        house.write(known_elsewhere, member_id=otto)
        other = house.api(house.token(otto, "write"))
        assert other.get(f"/conversations/{said.conversation_id}/messages").status_code == 404
        assert other.get("/conversations").json()["conversations"] == []
        browser.login("otto")
        for page in ("/", "/runs", "/conversations", "/inbox", "/goals", "/schedules", "/shells", "/memory"):
            shown = browser.get(page)
            assert (shown.status_code, "What can you do?" in shown.text) == (200, False), page
        for _ in range(login_throttle.FREE + 1):
            assert house.browser().login("ada", "wrong password").status_code == 403
        assert house.browser().login("ada").status_code == 429
        assert apis[0].get("/connections/a%00b").status_code == 400
    finally:
        house.close()
