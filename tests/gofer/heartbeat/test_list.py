"""HEARTBEAT.md and the hours: what is due when, and that whatever is wrong with a file is said and stops nothing."""

from __future__ import annotations

import os
from datetime import date, datetime
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest
from pydantic import ValidationError

from gofer.errors import Conflict
from gofer.runs.agent_files import AgentFiles
from gofer.runs.agent_writer import switch_heartbeat
from gofer.runs.heartbeat_settings import (
    MAX_ITEMS,
    HeartbeatSettings,
    due_items,
    next_opening,
    parse_items,
    read_items,
    with_switch,
)

BERLIN = "Europe/Berlin"
ALL_DAY = HeartbeatSettings(hours="00:00-24:00")


def at(text: str, zone: str = BERLIN) -> float:
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(zone)).timestamp()


def due(line: str, *moments: float, settings: HeartbeatSettings = ALL_DAY) -> list[str]:
    """The periods for which an item is due at some moments."""
    items = parse_items(f"- {line}", settings).items
    return [period for moment in moments for _, period in due_items(items, moment, BERLIN)]


@pytest.mark.parametrize(
    ("line", "times", "count"),
    [
        ("every 2h: look", ["2026-11-17 00:00", "2026-11-17 01:59", "2026-11-17 02:00"], 2),
        ("every 30m: look", ["2026-11-17 10:00", "2026-11-17 10:29", "2026-11-17 10:30"], 2),
        ("every 3d: look", [f"2026-11-{day} 12:00" for day in range(12, 18)], 2),
        ("09:00: look", ["2026-11-17 08:59", "2026-11-17 09:00", "2026-11-17 18:00", "2026-11-18 09:30"], 2),
        ("mon,thu 09:00: look", ["2026-11-16 09:00", "2026-11-17 09:00", "2026-11-19 09:00"], 2),
        ("weekdays 09:00: look", ["2026-11-20 09:00", "2026-11-21 09:00", "2026-11-22 09:00"], 1),
        ("2026-12-24 09:00: look", ["2026-12-23 10:00", "2026-12-24 09:00", "2026-12-25 09:00"], 1),
        # The hour from 2 to 3 is not there on one day and twice on another.
        ("02:30: look", ["2026-03-29 01:59", "2026-03-29 03:00", "2026-03-29 04:00"], 1),
        ("02:30: look", ["2026-10-25 02:40"], 1),
    ],
)
def test_an_item_is_due_once_in_each_of_its_periods(line: str, times: list[str], count: int) -> None:
    assert len(set(due(line, *map(at, times)))) == count


def test_an_hour_that_comes_twice_makes_nothing_due_twice() -> None:
    first = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo(BERLIN), fold=0).timestamp()
    second = datetime(2026, 10, 25, 2, 30, tzinfo=ZoneInfo(BERLIN), fold=1).timestamp()
    assert second - first == 3600
    for line in ("02:30: look", "every 1h: look"):
        assert len(set(due(line, first, second))) == 1


def test_hours_may_cross_midnight_and_a_change_of_daylight_saving() -> None:
    night = HeartbeatSettings(hours="22:00-06:00")
    assert [
        night.is_time(at(f"2026-11-17 {time}"), BERLIN) for time in ("21:59", "22:00", "05:59", "06:00")
    ] == [
        False,
        True,
        True,
        False,
    ]
    day = HeartbeatSettings(hours="08:00-20:00")
    assert day.is_time(at("2026-03-29 08:00"), BERLIN)
    assert not day.is_time(at("2026-03-29 07:59"), BERLIN)
    assert 0 < next_opening(day, at("2026-11-17 07:02"), BERLIN) <= 3600
    assert next_opening(day, at("2026-11-17 12:00"), BERLIN) == 0


@pytest.mark.parametrize(
    "hours", ["08:00-08:00", "8-20", "08:00-25:00", "nonsense", "24:00-06:00", "08:60-09:00"]
)
def test_hours_that_make_no_sense_are_refused(hours: str) -> None:
    with pytest.raises(ValidationError, match=r"should|no time"):
        HeartbeatSettings(hours=hours)


@pytest.mark.parametrize(
    ("given", "wrong"),
    [
        ({"budget": -1}, "greater"),
        ({"budget": float("nan")}, "finite"),
        ({"budget": float("inf")}, "finite"),
        ({"every": 1}, "greater"),
        ({"every": 100_000}, "less"),
        ({"loud": True}, "Extra"),
    ],
)
def test_settings_that_make_no_sense_are_refused(given: dict[str, object], wrong: str) -> None:
    with pytest.raises(ValidationError, match=wrong):
        HeartbeatSettings.model_validate(given)


@pytest.mark.parametrize(
    ("line", "said"),
    [
        ("look at the build", "every 2h"),
        ("soon: look", "every 2h"),
        ("every 1m: look", "at least 5 minutes"),
        ("every 30h: look", "number of days"),
        ("every 999999d: look", "at most 366 days"),
        ("25:00: look", "no time of a day"),
        ("24:00: look", "write 00:00"),
        ("2026-02-30 10:00: look", "never comes"),
        ("2020-01-01 10:00: look", "is over"),
        ("someday 10:00: look", "is no day"),
        ("09:00:", "every 2h"),
        ("09:00: " + "x" * 501, "at most 500"),
        ("23:30: look", "never comes within the hours"),
    ],
)
def test_a_line_that_makes_no_sense_is_said_with_its_number(line: str, said: str) -> None:
    found = parse_items(f"# List\n\n- {line}\n- 10:00: fine\n", HeartbeatSettings(), date(2026, 11, 17))
    assert [item.text for item in found.items] == ["fine"], "the others are in force"
    (problem,) = found.problems
    assert "HEARTBEAT.md line 3 is not in force" in problem
    assert said in problem


@pytest.mark.parametrize(
    "aside",
    [
        "<!--\n- every 2h: look at the mail\n-->",
        "<!-- - every 2h: look at the mail -->",
        "```\n- every 2h: look at the mail\n```",
        "~~~~ markdown\n```\n- every 2h: look at the mail\n~~~~",
        "Not yet: <!-- - 09:00: a\n- 10:00: b\n",
    ],
)
def test_what_stands_in_a_comment_or_a_code_fence_is_not_in_force(aside: str) -> None:
    kept = parse_items(f"- 08:00: open\n{aside}\n", ALL_DAY)
    assert ([item.text for item in kept.items], kept.problems) == (["open"], ())
    if not aside.startswith("Not yet"):
        after = parse_items(f"{aside}\n- nonsense\n- 18:00: close", ALL_DAY)
        assert [item.text for item in after.items] == ["close"]
        assert f"line {len(aside.splitlines()) + 1} " in after.problems[0], "lines keep their numbers"


def test_ten_thousand_items_are_cut_and_that_is_said() -> None:
    found = parse_items("\n".join(f"- 10:00: item {n}" for n in range(10_000)), ALL_DAY)
    assert len(found.items) == MAX_ITEMS
    assert len(found.problems) == 21
    assert "9880 more lines" in found.problems[-1]


def test_a_file_that_cannot_be_read_is_said_and_stops_nothing(tmp_path: Path) -> None:
    folder, outside = tmp_path / "scout", tmp_path / "secret.md"
    folder.mkdir()
    (folder / "agent.toml").write_text("[heartbeat]\nenabled = true\n")
    outside.write_text("- 10:00: leak the secret\n")
    path, files = folder / "HEARTBEAT.md", AgentFiles(tmp_path)

    def problem() -> str:
        files._lists.clear()
        spec, said = files.look()["scout"]
        assert spec is not None
        assert spec.heartbeat.enabled
        assert not files.heartbeat_list(spec).items
        return said

    path.symlink_to(outside)
    assert "a link to a file outside" in problem()
    path.unlink()
    path.write_bytes(b"- 10:00: \xff\xfe\n")
    assert "not UTF-8" in problem()
    with path.open("wb") as file:
        os.ftruncate(file.fileno(), 2**30)
    assert "more than 64 KiB" in problem()
    path.unlink()
    path.mkdir()
    assert "cannot be read" in problem()
    path.rmdir()
    os.mkfifo(path)
    assert "cannot be read" in problem()
    path.unlink()
    assert read_items(folder, ALL_DAY).problems == ()


def test_a_change_of_the_file_counts_from_the_next_look(tmp_path: Path) -> None:
    (tmp_path / "scout").mkdir()
    (tmp_path / "scout" / "agent.toml").write_text("")
    path, files = tmp_path / "scout" / "HEARTBEAT.md", AgentFiles(tmp_path)
    spec = files.get("scout")
    assert files.heartbeat_list(spec).items == ()
    path.write_text("* 10:00: look\n")
    assert [item.text for item in files.heartbeat_list(spec).items] == ["look"]


@pytest.mark.parametrize(
    "toml",
    [
        "",
        'model = "auto"\n',
        "[heartbeat] # mine\nevery = 60\n",
        "[heartbeat]\nenabled = false\n\n[limits]\nsteps = 5\n",
    ],
)
def test_the_switch_changes_its_own_line_alone(tmp_path: Path, toml: str) -> None:
    (tmp_path / "scout.toml").write_text(toml)
    assert switch_heartbeat(tmp_path, "scout", enabled=True).heartbeat.enabled
    kept = (tmp_path / "scout.toml").read_text()
    assert all(line in kept for line in toml.splitlines() if "enabled" not in line)
    assert not switch_heartbeat(tmp_path, "scout", enabled=False).heartbeat.enabled
    assert with_switch(kept, enabled=True) == kept


def test_a_heartbeat_is_switched_off_also_in_a_file_that_is_broken(tmp_path: Path) -> None:
    path = tmp_path / "scout.toml"
    path.write_text("[heartbeat]\nenabled = true\n")
    files = AgentFiles(tmp_path)
    assert files.get("scout").heartbeat.enabled
    path.write_text("[heartbeat]\nenabled = true\n[limits]\nsteps = lots\n")
    assert files.get("scout").heartbeat.enabled, "what was good last is in force"
    with pytest.raises(Conflict, match="Fix it first"):
        switch_heartbeat(tmp_path, "scout", enabled=True)
    assert not switch_heartbeat(tmp_path, "scout", enabled=False).heartbeat.enabled
    assert not files.get("scout").heartbeat.enabled
    assert path.read_text() == "[heartbeat]\nenabled = false\n[limits]\nsteps = lots\n"


def test_an_agent_without_a_file_gets_a_folder_by_the_switch(tmp_path: Path) -> None:
    switch_heartbeat(tmp_path, "gofer", enabled=True)
    assert (tmp_path / "gofer" / "agent.toml").read_text() == "[heartbeat]\nenabled = true\n"
    assert not (tmp_path / "gofer.toml").exists()
