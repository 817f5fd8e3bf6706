"""The doctor: what is wrong is found, named, and comes with the way out."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import queue
import re
import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gofer.cli import main
from gofer.doctor.findings import PAGES
from gofer_standins import loopback
from gofer_standins.anthropic import Anthropic, say
from support.command_line import Terminal
from support.patience import patience
from support.servers import shared, turn


def findings(terminal: Terminal, *options: str, fails: int = 0) -> dict[str, dict[str, Any]]:
    out = terminal("doctor", "--json", *options) if not fails else ""
    if fails:
        assert main(["doctor", "--json", *options]) == fails
        out = terminal._capsys.readouterr().out
    return {each["check"]: each for each in json.loads(out)["findings"]}


def test_looking_makes_nothing(terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOFER_DATA_DIR", str(tmp_path / "none"))
    assert findings(terminal)["database"]["fix"] == "gofer serve"
    assert not (tmp_path / "none").exists()


def test_a_misspelt_variable_is_named_with_what_was_meant(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert "settings" not in findings(terminal)
    monkeypatch.setenv("GOFER_PROT", "80")
    found = findings(terminal)["settings"]
    assert found["severity"] == "warning"
    assert "GOFER_PROT means nothing" in found["line"]
    assert "GOFER_PORT" in found["fix"]
    monkeypatch.delenv("GOFER_PROT")
    monkeypatch.setenv("GOFER_ZZZZZZZ", "1")
    assert findings(terminal)["settings"]["fix"] == "unset GOFER_ZZZZZZZ"
    monkeypatch.delenv("GOFER_ZZZZZZZ")
    monkeypatch.setenv("GOFER_PORT_FILE", "")
    assert "settings" not in findings(terminal)


def test_an_open_data_directory(terminal: Terminal, data_dir: Path) -> None:
    data_dir.chmod(0o777)
    found = findings(terminal, fails=1)
    assert found["data directory"]["fix"] == f"chmod go-w {data_dir}"


def test_a_missing_master_key(terminal: Terminal, data_dir: Path) -> None:
    terminal("secrets", "put", "x", stdin="some secret value")
    (data_dir / "master.key").chmod(0o644)
    found = findings(terminal, fails=1)["platform"]
    assert found["fix"] == f"chmod 600 {data_dir / 'master.key'}"
    (data_dir / "master.key").unlink()
    found = findings(terminal, fails=1)["platform"]
    assert "master.key is missing" in found["line"]
    assert "from your backup" in found["fix"]
    assert found["docs"].endswith("#secrets-and-the-master-key")


def test_agents_files_that_make_no_sense_and_models_without_a_key(terminal: Terminal, data_dir: Path) -> None:
    folder = data_dir / "agents"
    folder.mkdir(parents=True)
    for name, text in {
        "fine.toml": "[[routes]]\n",
        "plain.toml": "",
        "deaf.toml": '[[routes]]\nconnection = "nowhere"\n',
        "gofer.toml": "model = \n",
        "never.toml": "\nmodel = 3\n",
        "orphan.md": "",
        "keyless.toml": 'model = "openai/gpt-5"\n[[routes]]\n',
    }.items():
        (folder / name).write_text(text)
    terminal("agents", "list")
    found = findings(terminal, fails=1)
    said = {
        name: each["severity"]
        for name, each in found.items()
        if name.startswith(("agent", "model of", "routes"))
    }
    assert said == {
        "agent gofer": "warning", "agent never": "error", "agent file orphan.md": "warning",
        "model of keyless": "error", "routes of keyless": "warning",
        "routes of deaf": "warning",
    }  # fmt: skip
    assert "fine and keyless have the same route" in found["routes of keyless"]["line"]
    (data_dir / "prices.toml").write_text('[models."x/y"]\ninput = 1\n')
    priced = findings(terminal, fails=1)["prices"]
    assert "prices.toml" in priced["line"]
    assert priced["docs"] == "models.md#prices"
    assert "deaf has a route for nowhere" in found["routes of deaf"]["line"]
    assert "never.toml: line 2: model" in found["agent never"]["line"]
    assert found["agent never"]["docs"] == "agents.md"
    assert "gofer agents put never" in found["agent never"]["fix"]


def test_a_wrong_setting(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOFER_TIMEZONE", "Mars")
    assert "GOFER_TIMEZONE" in findings(terminal, fails=1)["settings"]["line"]
    assert main(["doctor"]) == 1
    shown = terminal._capsys.readouterr().out
    assert "fix: Correct GOFER_TIMEZONE" in shown
    assert "see: docs/operations.md#settings" in shown


def test_a_connection_whose_integration_is_gone(terminal: Terminal, data_dir: Path) -> None:
    added = terminal.json(
        "connections", "add", "hello", "--name", "mine", "--set", "reply_url=http://127.0.0.1:9/"
    )
    with contextlib.closing(sqlite3.connect(data_dir / "gofer.db")) as store, store:
        store.execute("UPDATE connection SET integration = 'acme'")
    refused = findings(terminal, fails=1)
    assert added["connection"]["id"] in refused["signed rows"]["line"]
    assert "gofer rows accept" in refused["connection mine"]["line"]
    terminal("rows", "accept", "connection", added["connection"]["id"])
    found = findings(terminal, fails=1)["connection mine"]
    assert "There is no integration 'acme'." in found["line"]
    assert found["docs"] == "integrations/hello.md#in-a-package-of-its-own"
    terminal(*found["fix"].partition("or: gofer ")[2].split())
    assert "Switched off." in terminal("connections", "test", added["connection"]["id"])
    assert findings(terminal)["connection mine"]["severity"] == "ok"


def test_postgres_and_redis(
    terminal: Terminal, postgres_url: str, monkeypatch: pytest.MonkeyPatch, run_dir: Path
) -> None:
    with turn(run_dir):
        valkey, _ = shared("valkey", run_dir)
    monkeypatch.setenv("GOFER_DATABASE_URL", postgres_url)
    monkeypatch.setenv("GOFER_REDIS_URL", valkey.valkey_url)
    found = findings(terminal)
    assert found["database"]["line"].startswith("Postgres")
    assert found["redis"]["severity"] == "ok"
    monkeypatch.setenv("GOFER_REDIS_URL", "redis://127.0.0.1:9/0")
    assert findings(terminal)["redis"]["severity"] == "warning"
    valkey.leave()
    monkeypatch.setenv("GOFER_DATABASE_URL", "postgresql://nobody@127.0.0.1:9/none")
    found = findings(terminal, fails=1)["platform"]
    assert "Postgres cannot be reached" in found["line"]
    assert "GOFER_DATABASE_URL" in found["fix"]
    assert "postgres" in found["docs"]
    monkeypatch.setenv("GOFER_DATABASE_URL", "postgresql://nobody@127.0.0.1:many/none")
    assert "GOFER_DATABASE_URL" in findings(terminal, fails=1)["settings"]["fix"]


@pytest.mark.parametrize("place", ["/etc/passwd", "/tmp/" + "a" * 300])
def test_a_data_directory_that_cannot_be(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("GOFER_DATA_DIR", place)
    found = findings(terminal, fails=1)
    assert found["data directory"]["fix"] == "Set GOFER_DATA_DIR."


def test_every_finding_leads_to_a_page_that_is_there(terminal: Terminal) -> None:
    terminal("connections", "add", "hello", "--set", "reply_url=http://127.0.0.1:9/")
    docs = Path(__file__).parents[3] / "docs"
    for each in [*findings(terminal).values(), *({"docs": page} for page in PAGES.values())]:
        page, _, place = each["docs"].partition("#")
        text = (docs / page).read_text(encoding="utf-8")
        headings = [re.sub(r"[^a-z0-9 -]", "", line.lower()) for line in re.findall(r"^#+ (.*)$", text, re.M)]
        assert not place or place in [heading.replace(" ", "-") for heading in headings], each["docs"]


def test_fixing_closes_what_is_open(terminal: Terminal, data_dir: Path) -> None:
    terminal("secrets", "put", "x", stdin="some secret value")
    data_dir.chmod(0o777)
    fixed = terminal.json("doctor", "--fix")
    assert any("Closed" in line for line in fixed["fixed"])
    assert data_dir.stat().st_mode & 0o777 == 0o700
    assert terminal.json("doctor", "--fix")["fixed"] == []


@contextlib.contextmanager
def served(app: Any) -> Iterator[str]:
    """An app on loopback, in a thread of its own."""
    loop, over, found = asyncio.new_event_loop(), asyncio.Event(), queue.Queue[str]()

    async def live() -> None:
        async with loopback.serve(app) as url:
            found.put(url)
            await over.wait()

    thread = threading.Thread(target=lambda: asyncio.Runner(loop_factory=lambda: loop).run(live()))
    thread.start()
    try:
        yield found.get(timeout=patience(30))
    finally:
        loop.call_soon_threadsafe(over.set)
        thread.join()
        loop.close()


def test_the_model_is_asked_only_with_consent(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    service = Anthropic([say("ok")], key="the-right-key-of-the-tests")
    with served(service.app) as url:
        monkeypatch.setenv("GOFER_ANTHROPIC_BASE_URL", url)
        terminal("secrets", "put", "other", stdin="some secret value")
        assert "offline" in findings(terminal)["model"]["line"]
        terminal("secrets", "put", "anthropic_key", stdin="a-wrong-key-of-the-tests")
        assert "was not asked" in findings(terminal)["model"]["line"]
        assert findings(terminal, "--call", fails=1)["model"]["fix"].startswith(
            "gofer secrets put anthropic_key"
        )
        terminal("secrets", "put", "anthropic_key", stdin="the-right-key-of-the-tests")
        assert service.received == []
        assert "answered in" in findings(terminal, "--call")["model"]["line"]
        assert len(service.received) == 1


@pytest.mark.parametrize(
    ("mode", "holds", "code"), [(0o1777, "", 1), (0o777, "theirs.txt", 1), (0o755, "theirs.txt", 0)]
)
def test_a_directory_of_others_is_never_closed(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, mode: int, holds: str, code: int
) -> None:
    shared_one = tmp_path / "shared"
    shared_one.mkdir()
    if holds:
        (shared_one / holds).touch()
    shared_one.chmod(mode)
    monkeypatch.setenv("GOFER_DATA_DIR", str(shared_one))
    found = findings(terminal, "--fix", fails=code)
    assert "choose another directory" in found["data directory"]["fix"]
    assert shared_one.stat().st_mode & 0o7777 == mode
    if code:
        assert "choose another directory" in terminal("status", fails=78)


def test_an_empty_setting_is_none(
    terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "empty").write_text("\n")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("GOFER_DATA_DIR", "")
    monkeypatch.setenv("GOFER_SLOTS", "")
    assert str(tmp_path / "home" / "gofer") in findings(terminal)["data directory"]["line"]
    monkeypatch.delenv("GOFER_DATA_DIR")
    monkeypatch.setenv("GOFER_DATA_DIR_FILE", str(tmp_path / "empty"))
    assert str(tmp_path / "home" / "gofer") in findings(terminal)["data directory"]["line"]


def test_a_data_directory_that_can_never_be_made(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOFER_DATA_DIR", "/nonexistent/x")
    before = os.geteuid()
    if before == 0:
        os.seteuid(65534)
    try:
        found = findings(terminal, fails=1)["data directory"]
    finally:
        os.seteuid(before)
    assert "cannot be made" in found["line"]
    assert "GOFER_DATA_DIR" in found["fix"]
