"""What people and scripts rely on: help with examples, exit codes, one line for an error, nothing secret."""

from __future__ import annotations

import json
import os
import pty
import select
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from gofer import __version__
from gofer.cli.commands import COMMANDS, NOUNS, app_for, load
from gofer.web.unix_socket import reachable
from support.command_line import Forked, Terminal, environment, gofer
from support.patience import patience


def commands() -> Iterator[tuple[str, ...]]:
    for name in COMMANDS:
        yield (name,)
    for noun in NOUNS:
        for command in load(f"{noun}.app").registered_commands:
            yield noun, command.name or command.callback.__name__


@pytest.mark.parametrize("command", [*commands()], ids=" ".join)
def test_every_command_explains_itself_with_an_example(
    command: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    app_for(command)([*command, "--help"], standalone_mode=False)
    text = capsys.readouterr().out
    if command[0] not in ("version",):
        assert f"gofer {' '.join(command)}" in text.partition("Usage:")[2].partition("\n")[2]
    runs_on = command[0] in ("serve", "web", "worker", "up", "chat")
    if not runs_on and command not in (("mcp", "serve"), ("runtimes", "host")):
        assert "--json" in text


def test_help_imports_nothing_heavy() -> None:
    code = "import sys, gofer.cli; gofer.cli.main(['--help']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = set(done.stdout.split())
    assert not loaded & {"sqlalchemy", "httpx2", "starlette", "pydantic", "alembic", "anthropic", "uvicorn"}


@pytest.mark.parametrize(
    ("arguments", "code", "says"),
    [
        (("zzyzx",), 2, "No such command 'zzyzx'. Try: "),
        (("jbos",), 2, "No such command 'jbos'. Did you mean 'jobs'? Try: "),
        (("jobs", "show", "seven"), 2, "integer"),
        (("jobs", "list", "--state", "lost"), 2, "No job is in the state 'lost'. The states are: ready"),
        (("jobs", "show", "7"), 3, "There is no job 7"),
        (
            ("connections", "add", "hello"),
            2,
            "reply_url: is required. Settings are given with",
        ),
        (("connections", "add", "telegram"), 2, "secrets with --secret-file NAME=PATH"),
        (("connections", "add", "nothing"), 3, "is found when it starts again"),
        (("connections", "add", "hello", "--set", "reply_url"), 2, "name=value"),
        (("connections", "sign-up", "hello"), 2, "Use `gofer connections add hello`."),
        (("connections", "show", "hello_x"), 3, "gofer connections list"),
        (("secrets", "put", "x"), 2, "empty"),
        (("secrets", "put", "bad name"), 2, "letters"),
        (("secrets", "put", "x", "--owner", "hello_x"), 3, "hello_x"),
        (("goals", "show", "goal_x"), 3, "goal_x"),
        (("goals", "pause", "goal_x"), 3, "goal_x"),
        (("goals", "list", "--state", "lost"), 2, "state"),
        (("goals", "add", " "), 2, "text"),
        (("memory", "rules", "conv_x"), 3, "conv_x"),
        (("memory", "search", "word " * 20_000), 2, "too long"),
        (("memory", "search", "bad \udcff byte"), 2, "not UTF-8"),
        (("memory", "add", "bad \udcff byte", "--scope", "agent:gofer"), 2, "not UTF-8"),
        (("memory", "rules", "conv_x", "--revoke", "mem_x"), 3, "conv_x"),
        (("memory", "rules", "conv_x", "--revoke", "mem_x", "--restore", "mem_x"), 2, "not both"),
        (("purge", "conv_x"), 2, "--yes"),
        (("purge", "conv_x", "--yes"), 3, "conv_x"),
        (("schedules", "add", "x", "often", "--kind", "catch_up"), 2, "cron"),
        (
            ("schedules", "add", "x", "* * * * *", "--kind", "catch_up", "--timezone", "Mars"),
            2,
            "no time zone 'Mars'",
        ),
        (("schedules", "add", "x", "* * * * *", "--kind", "catch_up", "--missed", "maybe"), 2, "missed"),
        (("schedules", "add", "x", "* * * * *", "--kind", "catch_up", "--payload", "["), 2, "JSON"),
        (("schedules", "add", "x", "* * * * *", "--kind", "catch_up"), 2, "must name a connection"),
        (("schedules", "add", "x", "* * * * *", "--say", "hello"), 2, "agent"),
        (("schedules", "add", "x", "* * * * *"), 2, "--say with --agent and --conversation, or --kind"),
        (("schedules", "add", "x", "* * * * *", "--kind", "nonsense"), 2, "It can be: catch_up, set_up"),
        (("schedules", "add", "x", "* * * * *", "--kind", "say"), 2, "It can be: catch_up, set_up"),
        (("replay", "nothing.json", "--to", "x"), 2, "nothing.json"),
        (("replay", "nothing.json"), 2, "There is no file nothing.json"),
        (("replay", "7"), 3, "no delivery 7"),
        (("restore", "nothing.db"), 2, "nothing.db"),
        (("backup", "/dev/null/gofer.db"), 2, "cannot be written"),
        (("backup", "/nope/gofer.db"), 2, "there is no directory /nope"),
        (("restore", __file__, "--with-key"), 2, "test_usage.py.key does not exist"),
        (
            ("serve", "--host", "not.a.host.invalid"),
            78,
            "Give an address of this machine: gofer serve --host",
        ),
        (("serve", "--host", "a" * 70), 78, "Give an address of this machine: gofer serve --host"),
        (("say", "hi", "--conversation", "conv_x", "--agent", "coder"), 2, "say: /agent coder"),
        (("web",), 78, "gofer serve"),
        (("worker",), 78, "Postgres"),
    ],
    ids=lambda value: " ".join(value) if isinstance(value, tuple) else None,
)
def test_what_cannot_be_done_is_one_line_and_a_code(
    terminal: Terminal, arguments: tuple[str, ...], code: int, says: str
) -> None:
    assert says in terminal(
        *arguments, stdin="value" if "bad name" in arguments or "--owner" in arguments else "", fails=code
    )


def test_somebody_at_a_terminal_is_asked_for_the_secrets_that_are_needed_and_no_others(
    data_dir: Path,
) -> None:
    """A GitHub App has no token: an empty one, typed because it was asked for, would be taken for one."""
    shown = at_a_terminal(data_dir, "connections", "add", "github", "--set", "app_id=1")
    assert "token (" not in shown
    assert "The secret private_key of connection github_" in shown
    asked = at_a_terminal(data_dir, "connections", "add", "telegram")
    assert "token (The bot's token, from @BotFather.): " in asked
    assert "gofer: The secret is empty." in asked


def at_a_terminal(data_dir: Path, *arguments: str) -> str:
    """What a command shows to somebody who answers every question with Enter alone."""
    ours, theirs = pty.openpty()
    name = os.ttyname(theirs)
    asking = Forked(environment(data_dir), arguments, name, name, name)
    shown = b""
    while select.select([ours], [], [], 0.05)[0] or asking.poll() is None:
        if select.select([ours], [], [], 0)[0]:
            shown += os.read(ours, 65536)
            if shown.endswith(b": ") and not shown.endswith(b"gofer: "):  # which begins an error
                os.write(ours, b"\n")
    os.close(ours)
    os.close(theirs)
    assert asking.wait(patience(20)) in (1, 2)
    return shown.decode()


def test_a_secret_that_is_not_text_is_refused_in_one_line(data_dir: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "gofer", "secrets", "put", "y"],
        env=environment(data_dir),
        input=b"a\xff",
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stderr) == (2, b"gofer: stdin cannot be read: it is not text in UTF-8.\n")


@pytest.mark.parametrize("command", ["status", "serve"])
@pytest.mark.parametrize(
    ("variable", "value", "code", "says"),
    [
        ("DATABASE_URL", "postgresql://u:p@127.0.0.1:1/x?sslmode=require", 75, "cannot be reached"),
        ("DATABASE_URL", "postgresql://u:p@127.0.0.1:1/x?sslmode=verify-full", 78, "root certificate"),
        ("DATABASE_URL", "postgresql://u:p@127.0.0.1:1/x?sslmood=require", 78, "'sslmood'"),
        ("DATABASE_URL", "postgresql://u:p@127.0.0.1:notaport/x", 78, "'notaport'"),
        ("DATABASE_URL", "postgresql://u:p@127.0.0.1:99999/x", 78, "'99999'"),
        ("REDIS_URL", "nonsense", 78, "must be redis://"),
    ],
)
def test_an_address_that_cannot_work_is_one_line_and_a_code(
    terminal: Terminal,
    monkeypatch: pytest.MonkeyPatch,
    command: str,
    variable: str,
    value: str,
    code: int,
    says: str,
) -> None:
    monkeypatch.setenv("HOME", "/nonexistent")
    monkeypatch.setenv(f"GOFER_{variable}", value)
    assert says in terminal(command, *(("--port", "0") if command == "serve" else ()), fails=code)


def test_a_wrong_setting_names_its_variable(data_dir: Path) -> None:
    done = gofer(data_dir, "status", lease="-1")
    assert (done.returncode, done.stdout) == (78, "")
    assert done.stderr.startswith("gofer: GOFER_LEASE: ")
    assert len(done.stderr.splitlines()) == 1


def test_a_secret_typed_as_an_argument_is_refused_and_not_repeated(terminal: Terminal) -> None:
    said = terminal("connections", "add", "hello", "--secret-file", "sk-typed-by-mistake", fails=2)
    assert "sk-typed-by-mistake" not in said
    assert "name=path" in said


def test_the_version_is_told_whichever_way_it_is_asked_for(terminal: Terminal) -> None:
    assert terminal("--version") == terminal("version") == f"{__version__}\n"


def test_a_reader_that_goes_away_is_no_error(data_dir: Path) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    done = subprocess.run(
        [sys.executable, "-m", "gofer", "version"],
        env=environment(data_dir),
        stdout=writer,
        stderr=subprocess.PIPE,
        check=False,
    )
    os.close(writer)
    assert done.returncode in (1, 141)
    assert done.stderr == b""


def test_words_of_strangers_cannot_steer_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    from gofer.cli.output import facts, show, table

    show({"title": "\x9b2J\u202e"}, as_json=True, in_words=lambda: None)
    told = capsys.readouterr().out
    assert json.loads(told) == {"title": "\x9b2J\u202e"}
    assert told.isascii()
    table(("title",), [("\x1b[2J\u202egone [red]x[/red]\r\n",)])
    facts([("title", "\x1b]0;owned\x07")])
    shown = capsys.readouterr().out
    assert not {"\x1b", "\x07", "\u202e", "\r"} & set(shown)
    assert "[red]x[/red]" in shown


@pytest.mark.parametrize(
    ("before", "text", "more"),
    [
        ("", "All is well.", "All is well."),
        ("All is", "All is well.", " well."),
        ("All is ", "All is well.", "well."),
        ("All is well.", "All is well.", ""),
        ("All is well.\n", "All is well.", ""),
        ("All is ", "**scribe**\n\nAll is well.", "well.\n(scribe)"),
        ("All is", "**scribe**\n\nAll is well.", " well.\n(scribe)"),
        ("", "**scribe**\n\nAll is well.", "**scribe**\n\nAll is well."),
        ("Let me look.", "All is well.", "\nAll is well."),
    ],
)
def test_an_answer_that_was_shown_as_it_came_is_printed_once(before: str, text: str, more: str) -> None:
    from gofer.cli.chat import unprinted

    assert unprinted(before, text) == more


def test_the_command_tree_is_whole() -> None:
    assert typer.main.get_command(app_for(())).name == "gofer"
    names = set(COMMANDS) | set(NOUNS)
    assert names >= {
        *("serve", "web", "worker", "demo", "doctor", "status", "key", "secrets", "connections", "jobs"),
        *("deliveries", "questions", "schedules", "replay", "backup", "restore", "purge", "version"),
    }


@pytest.mark.parametrize("name", ["gofer.db.lock", "master.key.lock"])
def test_a_file_that_cannot_be_opened_is_one_line(terminal: Terminal, data_dir: Path, name: str) -> None:
    (data_dir / name).mkdir()  # as good as one of another user, and so for root, too
    line = terminal("status", fails=78)
    assert str(data_dir / name) in line
    assert "Traceback" not in line


def test_a_server_that_hangs_is_not_running(
    terminal: Terminal, data_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gofer.cli.instance.PROMPTLY", 0.2)
    with reachable(data_dir / "gofer.sock") as name, socket.socket(socket.AF_UNIX) as frozen:
        frozen.bind(name)
        frozen.listen()
        assert "did not answer in time" in terminal("status", "--running", fails=1)


def test_a_shell_completes_commands() -> None:
    asked = {"_GOFER_COMPLETE": "complete_bash", "COMP_WORDS": "gofer jobs red", "COMP_CWORD": "2"}
    told = subprocess.run(
        [Path(sys.executable).with_name("gofer")], env=os.environ | asked, capture_output=True, text=True
    )
    assert told.stdout.split() == ["redrive"]
