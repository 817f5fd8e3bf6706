"""The log: every line carries its ids, and no line a secret."""

from __future__ import annotations

import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pytest
import structlog
from python_multipart.exceptions import MultipartParseError
from python_multipart.multipart import MultipartParser

from gofer.logs import goes_to_file, set_up_logs
from gofer.settings import Settings
from gofer.vault.redaction import Redactor, Secret
from support.process_speed import log_plainly

CANARY = "canary-in-the-log"


@pytest.fixture
def _clean() -> Iterator[None]:
    handlers, level = logging.getLogger().handlers[:], logging.getLogger().level
    yield
    logging.getLogger().handlers[:] = handlers
    logging.getLogger().setLevel(level)
    log_plainly()


@pytest.mark.usefixtures("_clean")
@pytest.mark.parametrize("form", ["json", "console"])
def test_no_secret_gets_into_a_line(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs(Settings(log_format=form), Redactor({"token": Secret(CANARY)}))  # type: ignore[arg-type]
    log = structlog.get_logger()
    log.info(f"said {CANARY}", header=f"Bearer {CANARY}", nested={"deep": [CANARY]}, held=Secret(CANARY))
    try:
        local = CANARY
        raise ValueError(f"broke on {local}")
    except ValueError:
        log.exception("it broke")
        logging.getLogger("some.library").exception("it broke there, too: %s", CANARY)
    shown = capsys.readouterr().err
    assert CANARY not in shown
    assert shown.count("ValueError") >= 2


@pytest.mark.usefixtures("_clean")
def test_a_log_in_a_file_leaves_the_terminal_to_warnings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    settings = Settings(data_dir=tmp_path)
    set_up_logs(settings, Redactor({"token": Secret(CANARY)}), to_file=True)
    structlog.get_logger().info("request", path=f"/{CANARY}")
    structlog.get_logger().warning("it.lags", why="x" * 1000, token=CANARY)
    logging.getLogger("some.library").error("it broke: %s", CANARY)
    shown = capsys.readouterr().err.splitlines()
    assert [line.split()[1] for line in shown] == ["it.lags", "it"]
    assert max(map(len, shown)) < 210
    kept = settings.log_path.read_text()
    assert [json.loads(line)["event"].split()[0] for line in kept.splitlines()] == [
        "request",
        "it.lags",
        "it",
    ]
    assert CANARY not in kept + "".join(shown)
    assert settings.log_path.stat().st_mode & 0o077 == 0
    logging.getLogger().handlers[0].close()


@pytest.mark.usefixtures("_clean")
@pytest.mark.parametrize("form", ["json", "console"])
def test_a_line_gives_a_terminal_no_orders(form: str, capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs(Settings(log_format=form), Redactor())  # type: ignore[arg-type]
    acting = "\x1b]0;owned\x07\u202e"
    try:
        raise ValueError(f"broke on {acting}")
    except ValueError:
        structlog.get_logger().exception(f"it broke {acting}", path=acting)
        logging.getLogger("some.library").warning("it broke there, too: %s", acting)
    shown = capsys.readouterr().err
    assert shown.count("owned") == 4
    assert not {"\x1b", "\x07"} & set(shown)


@pytest.mark.usefixtures("_clean")
def test_a_malformed_form_of_a_stranger_writes_no_line(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs(Settings(log_format="json"), Redactor())
    with pytest.raises(MultipartParseError):
        MultipartParser(b"x").write(b"aXb")
    assert capsys.readouterr().err == ""


@pytest.mark.usefixtures("_clean")
def test_a_line_carries_its_ids(capsys: pytest.CaptureFixture[str]) -> None:
    set_up_logs(Settings(log_format="json", log_level="warning"), Redactor())
    with structlog.contextvars.bound_contextvars(job=7, attempt=2):
        structlog.get_logger().info("not shown")
        structlog.get_logger().warning("shown")
    (line,) = capsys.readouterr().err.splitlines()
    told = json.loads(line)
    assert (told["event"], told["level"], told["job"], told["attempt"]) == ("shown", "warning", 7, 2)
    assert told["timestamp"].endswith("Z")


@pytest.mark.parametrize(
    ("log_to", "terminal", "to_file"),
    [("file", False, True), ("auto", True, True), ("auto", False, False), ("stderr", True, False)],
)
def test_the_log_goes_to_a_file_where_somebody_asked_or_looks_at_a_terminal(
    monkeypatch: pytest.MonkeyPatch, log_to: Literal["auto", "stderr", "file"], terminal: bool, to_file: bool
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: terminal)
    assert goes_to_file(Settings(log_to=log_to)) is to_file
