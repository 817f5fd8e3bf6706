"""The doctor: what is wrong is found, named, and comes with the way out."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from commandline import Terminal
from servers import shared, turn


def findings(terminal: Terminal, fails: int = 0) -> dict[str, dict[str, Any]]:
    import json

    out = terminal("doctor", "--json") if not fails else ""
    if fails:
        from gofer.cli import main

        assert main(["doctor", "--json"]) == fails
        out = terminal._capsys.readouterr().out
    return {each["check"]: each for each in json.loads(out)["findings"]}


def test_looking_makes_nothing(terminal: Terminal, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOFER_DATA_DIR", str(tmp_path / "none"))
    assert findings(terminal)["database"]["fix"] == "gofer serve"
    assert not (tmp_path / "none").exists()


def test_an_open_data_directory(terminal: Terminal, data_dir: Path) -> None:
    data_dir.chmod(0o777)
    found = findings(terminal, fails=1)
    assert found["data directory"]["fix"] == f"chmod go-w {data_dir}"


def test_a_missing_master_key(terminal: Terminal, data_dir: Path) -> None:
    terminal("secrets", "put", "x", stdin="some secret value")
    (data_dir / "master.key").unlink()
    found = findings(terminal, fails=1)
    assert "master.key is missing" in found["platform"]["line"]


def test_a_wrong_setting(terminal: Terminal, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("GOFER_TIMEZONE", "Mars")
    assert "GOFER_TIMEZONE" in findings(terminal, fails=1)["settings"]["line"]


def test_a_connection_whose_service_is_gone(terminal: Terminal) -> None:
    terminal("connections", "add", "hello", "--name", "gone", "--set", "reply_url=http://127.0.0.1:9/")
    assert "connection gone" in findings(terminal)


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
    assert "Postgres cannot be reached" in findings(terminal, fails=1)["platform"]["line"]


@pytest.mark.parametrize("place", ["/etc/passwd", "/tmp/" + "a" * 300])
def test_a_data_directory_that_cannot_be(
    terminal: Terminal, monkeypatch: pytest.MonkeyPatch, place: str
) -> None:
    monkeypatch.setenv("GOFER_DATA_DIR", place)
    found = findings(terminal, fails=1)
    assert found["data directory"]["fix"] == "Set GOFER_DATA_DIR."
