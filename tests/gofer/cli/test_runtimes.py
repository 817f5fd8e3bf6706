"""`gofer runtimes`: every command but the host's, with what it says, and what it says to nonsense."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from pathlib import Path

import httpx2
import pytest

from gofer.cli.exit_codes import CONFIGURATION, CONFLICT, NOT_FOUND, USAGE
from support.command_line import Process, Terminal
from support.patience import patience, until
from support.terminals import AGENT as PANE_AGENT
from support.terminals import needs_tmux, terminals

FILE = """
[runtimes.desk]
agent = "reviewer"
kind = "tmux"
pane = "desk:reviewer"
program = "{program}"
socket = "{socket}"
"""
AGENT = 'runtime = "tmux"\n[external]\nfallback = "gofer"\n'


@pytest.fixture
def served(data_dir: Path, start: Callable[..., Process]) -> Process:
    (data_dir / "agents").mkdir(mode=0o700, exist_ok=True)
    (data_dir / "agents" / "reviewer.toml").write_text(AGENT)
    return start("serve").wait_until_ready()


@needs_tmux
def test_a_server_hosts_the_terminals_of_its_own_user_when_it_is_told_to(
    data_dir: Path, start: Callable[..., Process], terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    (data_dir / "agents").mkdir(mode=0o700, exist_ok=True)
    (data_dir / "agents" / "reviewer.toml").write_text(AGENT)
    home = data_dir.parent / "home"
    (home / ".config" / "gofer").mkdir(parents=True, mode=0o700)
    for name, value in {"HOME": str(home), "XDG_CONFIG_HOME": "", "XDG_STATE_HOME": ""}.items():
        monkeypatch.setenv(name, value)
    refused = start("serve", "--host-runtimes")
    assert refused.process.wait(patience(30)) == CONFIGURATION
    assert "runtimes.toml cannot be read" in refused.text()
    with terminals() as desk:
        desk.agent("reviewer")
        file = home / ".config" / "gofer" / "runtimes.toml"
        file.write_text(FILE.format(program=PANE_AGENT.name, socket=desk.socket))
        file.chmod(0o600)
        server = start("serve", "--host-runtimes").wait_until_ready()
        terminal("runtimes", "add", "desk", "--agent", "reviewer")
        until(lambda: terminal.json("runtimes", "show", "desk")["state"] == "live", within=30)
        hosts = _hosts(home)
        assert len(hosts) == 1
        assert not any(name.startswith(b"GOFER_") and name != b"GOFER_DATA_DIR" for name in _names(hosts[0]))
        server.process.kill()
        server.process.wait(patience(20))
        until(lambda: not _hosts(home), within=30)


def _hosts(home: Path) -> list[int]:
    """Processes of `gofer runtimes host` with this home."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            command, given = ((folder / name).read_bytes() for name in ("cmdline", "environ"))
            if b"runtimes\0host" in command and f"HOME={home}".encode() in given.split(b"\0"):
                found.append(int(folder.name))
    return found


def _names(pid: int) -> list[bytes]:
    return [each.partition(b"=")[0] for each in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")]


def test_runtimes_are_added_listed_shown_drained_triggered_and_removed(
    terminal: Terminal, served: Process
) -> None:
    assert "No runtimes. Add one" in terminal("runtimes", "list")
    add = ("runtimes", "add", "desk", "--agent", "reviewer")
    assert "desk is registered for" in terminal(*add)
    assert "There is a runtime 'desk' already" in terminal(*add, fails=CONFLICT)
    for arguments, code, words in (
        (("add", "x", "--agent", "nobody"), NOT_FOUND, "no agent called 'nobody'"),
        (("add", "x", "--agent", "gofer"), CONFLICT, "one of Gofer's own"),
        (("add", "x", "--agent", "reviewer", "--kind", "acp"), CONFLICT, 'runtime = "tmux"'),
        (("add", "x", "--agent", "reviewer", "--kind", "ssh"), USAGE, "kind"),
        (("add", "../x", "--agent", "reviewer"), USAGE, "name"),
        (("add", "x", "--agent", "reviewer", "--member", "nobody"), NOT_FOUND, "nobody"),
        (("show", "nothing"), NOT_FOUND, "nothing"),
        (("show", "../jobs/1"), USAGE, "may not be . or .."),
        (("drain", "nothing"), NOT_FOUND, "nothing"),
        (("remove", "nothing"), NOT_FOUND, "nothing"),
    ):
        assert words in terminal("runtimes", *arguments, fails=code), arguments
    (listed,) = terminal.json("runtimes", "list")["runtimes"]
    assert (listed["name"], listed["agent"], listed["kind"], listed["state"]) == (
        "desk", "reviewer", "tmux", "registered"
    )  # fmt: skip
    assert "never" in terminal("runtimes", "list")
    shown = terminal("runtimes", "show", "desk")
    assert "registered" in shown
    assert shown.rstrip().endswith("None.")
    assert "desk is draining." in terminal("runtimes", "drain", "desk")
    assert "desk is registered." in terminal("runtimes", "drain", "desk", "--off")

    terminal("say", "--agent", "reviewer", "are you there?")  # the fallback answers
    (conversation,) = [each["id"] for each in terminal.json("conversations", "list")["conversations"]]
    wake = ("runtimes", "trigger", conversation, "reviewer")
    told = terminal.json(*wake)
    assert (told["action"], told["next"]) == ("fallback_required", "fallback:gofer")
    assert told.keys() >= {"action", "job", "runtime", "reason", "trace"}
    done, job, _ = terminal(*wake, "--force", "--reason", "it burns").split(", ", 2)
    assert done in ("fallback_required", "already_pending")
    assert job.startswith("job ")
    assert "reviewer  tmux" in terminal("runtimes", "participants", conversation)
    until(lambda: terminal.json("jobs", "show", str(told["job"]))["hops"], within=20)
    token = terminal.json("tokens", "add", "pane", "--scope", "write", "--agent", "reviewer")["token"]
    late = {"text": "Too\x1b[2J late.", "trigger": told["job"], "hop": 1}
    where = f"{served.url}/api/v1/conversations/{conversation}/messages"
    answer = httpx2.post(where, json=late, headers={"authorization": f"Bearer {token}"})
    assert answer.json()["result"] == "kept"
    shown = terminal("jobs", "show", str(told["job"]))
    assert "Not sent: it came" in shown
    assert "late." in shown
    assert "\x1b" not in shown
    for asked, code, words in (
        (("trigger", conversation, "nobody"), NOT_FOUND, "nobody"),
        (("trigger", "conv_nothing", "reviewer"), NOT_FOUND, "conv_nothing"),
        (("trigger", conversation, "reviewer", "--force"), USAGE, "say why"),
        (("participants", "conv_nothing"), NOT_FOUND, "conv_nothing"),
        (("unblock", conversation, "reviewer"), CONFLICT, "not blocked"),
        (("unblock", conversation, "nobody"), NOT_FOUND, "gofer runtimes participants"),
    ):
        assert words in terminal("runtimes", *asked, fails=code), asked
    assert "desk is forgotten." in terminal("runtimes", "remove", "desk")
    assert terminal.json("runtimes", "list")["runtimes"] == []
