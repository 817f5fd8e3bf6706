"""Web and worker apart, on Postgres: what happened is shown, only not while it happens."""

from __future__ import annotations

import base64
from pathlib import Path

from gofer.assembly import open_platform
from web_house import House
from webchat.visiting import Visit


def test_a_run_in_another_process_is_followed_by_the_log(tmp_path: Path, postgres_url: str) -> None:
    shared = {"database_url": postgres_url, "master_key": base64.b64encode(b"k" * 32).decode()}
    for part in ("web", "worker"):
        (tmp_path / part).mkdir(mode=0o700)
    house = House(tmp_path / "web", roles=("web",), **shared)
    settings = house.settings.model_copy(update={"data_dir": tmp_path / "worker", "sandbox": "unconfined"})
    worker = open_platform(settings, roles=frozenset({"worker"}))
    house.run(worker.__aenter__())
    try:
        visit = Visit(house, house.owner())
        with visit.line() as line:
            line.say("$ echo from afar; sleep 0.3; echo over")
            assert "from afar" in line.answers()[0]
            assert "exit 0" in line.of("call")[0]
            assert {frame["type"] for frame in line.frames} == {"news", "taken"}
            place, seen = line.cursor, set(line.items)
            line.say("$ echo again")
            line.answers(2)
            everything = set(line.items)
        with visit.line(place) as line:
            line.answers()
            assert set(line.items) == everything - seen
    finally:
        house.run(worker.__aexit__(None, None, None))
        house.close()
