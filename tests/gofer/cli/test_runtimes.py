"""`gofer runtimes`: every command but the host's, with what it says, and what it says to nonsense."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from gofer.cli.exit_codes import CONFLICT, NOT_FOUND, USAGE
from support.command_line import Process, Terminal

AGENT = 'runtime = "tmux"\n[external]\nfallback = "gofer"\n'


@pytest.fixture
def served(data_dir: Path, start: Callable[..., Process]) -> None:
    (data_dir / "agents").mkdir(mode=0o700, exist_ok=True)
    (data_dir / "agents" / "reviewer.toml").write_text(AGENT)
    start("serve").wait_until_ready()


@pytest.mark.usefixtures("served")
def test_runtimes_are_added_listed_shown_drained_triggered_and_removed(terminal: Terminal) -> None:
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
        (("show", "../jobs/1"), USAGE, "no dots and slashes"),
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
