"""Panes of a real tmux: text arrives as text and once, or a code says why not."""

from __future__ import annotations

import os
import shutil
import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as settings_of_hypothesis
from hypothesis import strategies as st

from gofer.integration import Author, Incoming
from gofer.runtime_host.configuration import TmuxSettings
from gofer.runtime_host.interfaces import MAX_TEXT, prepared
from gofer.runtime_host.panes import Pane, TypingWatch, is_shown
from gofer.runtime_host.tmux import TmuxAdapter
from gofer.runtimes.words import order_text
from gofer.store.messages import StoredMessage
from gofer.store.tables import Trust
from support.patience import eventually, until
from support.terminals import AGENT, Terminals, needs_tmux, terminals

from .order_runs import TestClock, carry_out

pytestmark = needs_tmux


@pytest.fixture(scope="module")
def desk() -> Iterator[Terminals]:
    with terminals() as made:
        yield made


def settings(desk: Terminals, pane: str = "", **more: object) -> TmuxSettings:
    given = {
        "agent": "coder",
        "kind": "tmux",
        "pane": pane,
        "program": AGENT.name,
        "socket": desk.socket,
        **more,
    }
    return TmuxSettings.model_validate(given)


def adapter(desk: Terminals, name: str, pane: str = "", **more: object) -> TmuxAdapter:
    return TmuxAdapter(name, settings(desk, pane, **more))


async def test_a_text_arrives_as_one_paste_and_is_sent_with_enter(desk: Terminals) -> None:
    pane = desk.agent("plain")
    carried = await carry_out(
        adapter(desk, "plain", "desk:plain"), text="Ada asks;\n\tcd $(x) `y` \\; ~ {#S};"
    )
    assert carried.outcome == ("delivered", "")
    assert carried.begun == 1
    await eventually(lambda: desk.told("plain"))
    assert desk.told("plain")[0]["pasted"] == ["Ada asks;\n\tcd $(x) `y` \\; ~ {#S};"]
    assert desk.told("plain")[0]["keys"] == ""
    assert "gofer" not in desk.run("list-buffers")
    assert desk.run("display-message", "-p", "-t", pane, "#{@gofer_runtime}") == "plain"


async def test_what_would_end_the_paste_or_steer_a_terminal_stays_out(desk: Terminals) -> None:
    desk.agent("hostile")
    evil = "One\x1b[201~\r/quit\r\x00\x03\x04\x1b]0;title\x07two\x9b201~\x1b\x1b[0m[201~ three"
    carried = await carry_out(adapter(desk, "hostile", "desk:hostile"), text=evil)
    assert carried.outcome == ("delivered", "")
    await eventually(lambda: desk.told("hostile"))
    (told,) = desk.told("hostile")
    assert told["keys"] == ""
    assert told["pasted"] == ["One\n/quit\ntwo201~[201~ three"]


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("x" * 1_000_000, "text.too_long"),
        ("line\n" * 10_000, "text.too_long"),
        ("é" * (MAX_TEXT // 2 + 1), "text.too_long"),
        ("\x00\x1b[31m \n", "text.empty"),
        ("", "text.empty"),
    ],
)
async def test_what_is_too_long_or_nothing_is_refused(desk: Terminals, text: str, reason: str) -> None:
    carried = await carry_out(adapter(desk, "none"), text=text)
    assert carried.outcome == ("failed", reason)
    assert carried.begun == 0


async def test_the_longest_text_arrives_whole(desk: Terminals) -> None:
    desk.agent("long")
    text = "\n".join(f"{number:04} abc" for number in range(MAX_TEXT // 9))
    assert (await carry_out(adapter(desk, "long", "desk:long"), text=text)).outcome == ("delivered", "")
    await eventually(lambda: desk.told("long"))
    assert desk.told("long")[0]["pasted"] == [text]


async def test_a_long_text_is_recognised_and_sent_also_when_one_before_it_has_scrolled_away(
    desk: Terminals,
) -> None:
    desk.agent("again")
    found = adapter(desk, "again", "desk:again")
    for trigger, said in enumerate(("Hello", "line\n" * 10_000), 1):
        message = Incoming("c", Author("ada", "Ada"), said, addressed=True)
        text = order_text(
            [StoredMessage(trigger, message, Trust.OWNER, None)],
            where="a chat",
            conversation_id="conv_k3v9",
            trigger=trigger,
            hop=1,
        )
        assert (await carry_out(found, text=text)).outcome == ("delivered", "")
    await eventually(lambda: len(desk.told("again")) == 2)


async def test_a_pane_is_found_again_whatever_it_is_called_and_wherever_it_moves(desk: Terminals) -> None:
    pane = desk.agent("first-name")
    found = adapter(desk, "movable", "desk:first-name")
    await found.open()
    desk.run("rename-window", "-t", pane, "second-name")
    desk.run("break-pane", "-d", "-s", pane, "-t", "desk:90")
    assert (await carry_out(found)).outcome == ("delivered", "")
    again = adapter(desk, "movable", "desk:first-name")
    await eventually(lambda: _reason(again, ""), within=10)
    assert (await carry_out(again)).outcome == ("delivered", "")


async def test_a_pane_that_is_gone_or_was_never_there_gets_nothing(desk: Terminals) -> None:
    desk.run("select-window", "-t", desk.agent("somebody-else"))
    pane = desk.agent("brief")
    found = adapter(desk, "brief", "desk:brief")
    assert (await found.look()).state == "live"
    desk.run("kill-pane", "-t", pane)
    assert (await carry_out(found)).outcome == ("failed", "runtime.gone")
    assert (await found.look()).state == "offline"
    for target in ("desk:nowhere", "%99", "nowhere:", pane):
        assert (await carry_out(adapter(desk, "never", target))).outcome == ("failed", "runtime.gone")
    assert desk.told("somebody-else") == []


async def test_a_pane_of_another_runtime_is_not_taken(desk: Terminals) -> None:
    desk.agent("taken")
    await adapter(desk, "owner-of-it", "desk:taken").open()
    assert (await carry_out(adapter(desk, "thief", "desk:taken"))).outcome == ("failed", "runtime.gone")


async def test_a_program_cannot_pass_for_a_pane_by_its_name(desk: Terminals) -> None:
    """A name may have a line's end in it, and tmux prints it so."""
    forged = f"x\n%99|forged|1|0|0|{os.getpid()}|0|@1|0|{AGENT.name}"
    desk.window("forger", sys.executable, "-c", f"import os; os.execv('/bin/sleep', [{forged!r}, '1000'])")
    await eventually(
        lambda: "\n%99|" in desk.run("list-panes", "-a", "-F", "#{pane_current_command}"), within=10
    )
    assert (await carry_out(adapter(desk, "forged"))).outcome == ("failed", "runtime.gone")
    desk.agent("honest")
    assert (await carry_out(adapter(desk, "honest", "desk:honest"))).outcome == ("delivered", "")


async def test_without_a_tmux_server_nobody_is_there(tmp_path: Path) -> None:
    lone = TmuxAdapter(
        "coder",
        TmuxSettings.model_validate(
            {"agent": "coder", "kind": "tmux", "program": "x", "socket": str(tmp_path / "s")}
        ),
    )
    assert (await carry_out(lone)).outcome == ("failed", "runtime.gone")


async def test_nothing_is_typed_into_copy_mode(desk: Terminals) -> None:
    pane = desk.agent("copying")
    found = adapter(desk, "copying", "desk:copying")
    await found.open()
    desk.run("copy-mode", "-t", pane)
    assert (await carry_out(found)).outcome == ("failed", "pane.copy_mode")
    desk.run("send-keys", "-t", pane, "-X", "cancel")
    assert (await carry_out(found)).outcome == ("delivered", "")


async def test_nothing_is_typed_into_a_shell_or_an_editor(desk: Terminals) -> None:
    """The agent is started from a shell, ends, and leaves the shell; then an editor comes."""
    pane = desk.window("shelly", "sh")
    desk.run("send-keys", "-t", pane, f"{sys.executable} {AGENT} {desk.log('shelly')}", "Enter")
    found = adapter(desk, "shelly", "desk:shelly")
    await eventually(lambda: _sees(found, "live"), within=10)
    desk.run("send-keys", "-t", pane, "C-c")
    await eventually(lambda: _sees(found, "offline"), within=10)
    assert (await carry_out(found, text="touch /tmp/never")).outcome == ("failed", "pane.shell")
    editor = shutil.which("vim") or str(desk.folder / "vim")
    if not os.path.exists(editor):
        os.symlink("/bin/sleep", editor)
    desk.run("send-keys", "-t", pane, f"{editor} 1000", "Enter")
    await eventually(lambda: _reason(found, "pane.other_program"), within=10)
    assert (await carry_out(found)).outcome == ("failed", "pane.other_program")


async def _sees(found: TmuxAdapter, state: str) -> bool:
    return (await found.look()).state == state


async def _reason(found: TmuxAdapter, reason: str) -> bool:
    return (await found.look()).reason == reason


async def test_an_editor_that_the_agent_called_is_left_alone(desk: Terminals) -> None:
    vim = desk.folder / "nano"
    vim.symlink_to("/bin/sleep")
    desk.agent("calls", "--answer", str(vim), "1000")
    found = adapter(desk, "calls", "desk:calls")
    assert (await carry_out(found)).outcome == ("delivered", "")
    await eventually(lambda: _reason(found, "pane.other_program"), within=10)
    assert (await carry_out(found)).outcome == ("failed", "pane.other_program")


async def test_an_agent_at_work_is_busy_and_one_at_its_prompt_idle(desk: Terminals) -> None:
    desk.agent("prompted", "--answer", "sleep", "1000")
    found = adapter(desk, "prompted", "desk:prompted", prompt="^>$")
    assert (await found.look()).state == "idle"
    assert (await carry_out(found)).outcome == ("delivered", "")
    await eventually(lambda: _reason(found, "runtime.busy"), within=10)
    assert (await carry_out(found)).outcome == ("failed", "runtime.busy")


async def test_a_draft_of_the_users_is_not_sent_with_what_people_ask(desk: Terminals) -> None:
    pane = desk.agent("drafted")
    found = adapter(desk, "drafted", "desk:drafted")
    desk.run("send-keys", "-t", pane, "-l", "rm -rf my")
    desk.wait_for(pane, "> rm -rf my")
    for force in (False, True):
        carried = await carry_out(found, force=force)
        assert carried.outcome == ("failed", "runtime.busy")
        assert (carried.begun, "set prompt" in carried.complaint) == (0, True)
    assert desk.told("drafted") == []
    desk.run("send-keys", "-t", pane, "C-u")
    await eventually(lambda: _reason(found, ""), within=10)
    assert (await carry_out(found)).outcome == ("delivered", "")
    await eventually(lambda: desk.told("drafted"))
    assert desk.told("drafted")[0]["keys"] == ""


CURSOR_LINES = [
    ("claude", "❯\xa0\x1b[7m ", 2, True),
    ("claude", '❯\xa0\x1b[2mTry "fix lint errors"', 2, True),
    ("claude", "❯\xa0my draft\x1b[7m ", 10, False),
    ("claude", "❯\xa0\x1b[7mm\x1b[0my draft", 2, False),
    ("claude", "  ", 2, False),
    ("claude", " \x1b[38;5;153m❯\x1b[39m \x1b[38;5;153mYes,\x1b[39m \x1b[38;5;153mI trust", 1, False),
    ("codex", "\x1b[1m›\x1b[0m\x1b[39m\x1b[49m \x1b[2mAsk Codex to do anything", 2, True),
    ("codex", "\x1b[1m›\x1b[0m\x1b[39m\x1b[49m my draft", 10, False),
    ("codex", "\x1b[1m›\x1b[0m\x1b[39m\x1b[49m my draft", 2, False),
    ("codex", "", 1, False),
    (
        "gemini",
        " \x1b[38;5;183m> \x1b[7m\x1b[39m \x1b[0m\x1b[38;5;248m\x1b[48;5;240m Type here\x1b[39m",
        3,
        True,
    ),
    ("gemini", " \x1b[38;5;183m> \x1b[7m\x1b[38;5;231mm\x1b[0m\x1b[38;5;231my draft", 3, False),
    (
        "opencode",
        "  \x1b[38;5;75m┃\x1b[38;5;15m\x1b[48;5;234m  \x1b[38;5;8mAsk anything…\x1b[38;5;15m  ",
        5,
        True,
    ),
    ("opencode", "  \x1b[38;2;90;160;255m┃  \x1b[38;2;128;128;128mAsk anything…", 5, True),
    ("opencode", "  \x1b[38;5;75m┃\x1b[38;5;15m  my draft", 13, False),
    ("another", "│ 日本 > \x1b[90mwhat now?", 9, False),
    ("another", "│ > \x1b[90mwhat now?\x1b[39m │", 4, True),
    ("another", "│ > \x1b]8;;http://x\x1b\\\x1b[2mwhat now?\x1b]8;;\x1b\\", 4, True),
    ("another", "1. Yes", 0, False),
]
"""As tmux shows the line with the cursor of Claude Code 2.1, Codex 0.169, Gemini CLI 0.61 and opencode 1.18."""


@pytest.mark.parametrize(("program", "line", "column", "free"), CURSOR_LINES)
async def test_the_input_of_an_agent_is_empty_but_for_a_hint(
    desk: Terminals, program: str, line: str, column: int, free: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def cursor_line(self: object, pane: object) -> str:
        return line

    monkeypatch.setattr("gofer.runtime_host.panes.TmuxServer.cursor_line", cursor_line)
    pane = Pane("%1", "", False, False, False, 1, 0, column, "@1", False, False, program)
    assert await adapter(desk, "seen", program=program)._at_prompt(pane) is free


async def test_no_enter_answers_what_a_program_asks_instead_of_taking_the_text(
    desk: Terminals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gofer.runtime_host.tmux.SHOW_TIMEOUT", 0.5)
    asks = (
        "import os, sys, tty; tty.setcbreak(0); print('Delete all?', flush=True)\n"
        "while os.read(0, 1) != b'\\r': pass\nprint('gone', flush=True)\nos.read(0, 1)"
    )
    pane = desk.window("asking", sys.executable, "-c", asks)
    desk.wait_for(pane, "Delete all?")
    found = adapter(desk, "asking", "desk:asking", program=os.path.basename(sys.executable))
    assert (await carry_out(found)).outcome == ("unknown", "pane.unconfirmed")
    assert "gone" not in desk.screen(pane)


async def test_an_agent_that_shows_nothing_leaves_it_unknown_whether_it_got_the_text(
    desk: Terminals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gofer.runtime_host.tmux.SHOW_TIMEOUT", 0.5)
    desk.window("mute", "sh", "-c", "stty -echo; exec sleep 1000")
    found = adapter(desk, "mute", "desk:mute", program="sleep")
    await eventually(lambda: _sees(found, "live"), within=10)
    assert (await carry_out(found)).outcome == ("unknown", "pane.unconfirmed")


async def test_a_tmux_that_hangs_costs_an_error_and_not_the_host(
    desk: Terminals, monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.agent("frozen")
    found = adapter(desk, "frozen", "desk:frozen")
    await found.open()
    monkeypatch.setattr("gofer.runtime_host.panes.CALL_TIMEOUT", 0.3)
    server = int(desk.run("display-message", "-p", "#{pid}"))
    os.kill(server, signal.SIGSTOP)
    try:
        assert (await carry_out(found)).outcome == ("failed", "tmux.hung")
    finally:
        os.kill(server, signal.SIGCONT)
    monkeypatch.undo()
    assert (await carry_out(found)).outcome == ("delivered", "")


# People who type.


async def test_a_person_who_types_is_waited_for_and_then_told(desk: Terminals) -> None:
    pane = desk.agent("typed")
    keyboard = desk.person(pane)
    os.write(keyboard, b"a draft\x15")
    until(lambda: _fresh(desk))
    clock = TestClock(wall=time.time())
    found = TmuxAdapter("typed", settings(desk, "desk:typed"), clock)
    carried = await carry_out(found)
    assert carried.outcome == ("delivered", "")
    assert [each.reason for each in carried.reports] == ["deferred.typing"]
    assert set(clock.slept) == {5.0}, "looked at again every 5 seconds"
    assert 15 <= sum(clock.slept) <= 20, "until 20 seconds were quiet"


def _fresh(desk: Terminals) -> bool:
    return bool(desk.run("list-clients", "-F", "#{client_activity}"))


@pytest.mark.parametrize(
    ("then", "outcome"), [("deliver", ("delivered", "")), ("fail", ("failed", "deferred.typing"))]
)
async def test_who_types_on_and_on_is_waited_for_sixty_seconds(
    desk: Terminals, then: str, outcome: tuple[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    desk.agent(f"busy-{then}")
    clock = TestClock(wall=1000)

    async def always_now(self: object, pane: object) -> int:
        return int(clock.now())

    monkeypatch.setattr("gofer.runtime_host.panes.TmuxServer.last_key", always_now)
    found = TmuxAdapter(f"busy-{then}", settings(desk, f"desk:busy-{then}"), clock)
    carried = await carry_out(found, quiet={"then": then})
    assert carried.outcome == outcome
    assert sum(clock.slept) == 60
    assert carried.begun == (1 if then == "deliver" else 0)
    await eventually(lambda: _reason(found, ""), within=10)  # at its prompt again
    forced = TestClock()
    assert (await carry_out(TmuxAdapter(f"busy-{then}", settings(desk), forced), force=True)).outcome[
        0
    ] == "delivered"
    assert forced.slept == []


def test_a_wall_clock_that_jumps_makes_nobody_quiet_and_nobody_type_for_ever() -> None:
    clock = TestClock(wall=10_000)
    watch = TypingWatch(clock)
    assert watch.quiet_for(9_990) == 10
    clock.elapsed += 5
    clock.wall += 3600  # an hour forwards, and a key meanwhile
    assert watch.quiet_for(9_993) == 5
    clock.wall -= 7200
    clock.elapsed += 30
    assert watch.quiet_for(9_993) == 30, "the stamp lies in the future, but nothing has come for 30 seconds"
    assert watch.quiet_for(None) == float("inf")


# Starting.


async def test_a_session_is_started_from_the_file_with_an_environment_of_its_own(
    desk: Terminals, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOFER_TOKEN", "gofer_secret")
    monkeypatch.setenv("AGENT_KEY", "given on purpose")
    command = [sys.executable, "-I", str(AGENT), str(desk.log("spawned"))]
    found = adapter(desk, "spawned", "desk:spawned", spawn=command, env=["AGENT_KEY"], prompt="^>$")
    assert (found.can_spawn, found.can_resume) == (True, False)
    assert (await carry_out(found, "resume")).outcome == ("failed", "runtime.not_managed")
    carried = await carry_out(
        found, "spawn", text="Ada asks: what is left?", summary="They talked about cats."
    )
    assert carried.outcome == ("delivered", "")
    await eventually(lambda: desk.told("spawned"))
    (told,) = desk.told("spawned")
    assert told["pasted"] == ["They talked about cats.\n\nAda asks: what is left?"]
    assert "AGENT_KEY" in told["environment"]
    assert "GOFER_TOKEN" not in told["environment"]
    assert "TMUX" not in told["environment"]
    assert "given on purpose" not in desk.run("list-panes", "-a", "-F", "#{pane_start_command}")
    assert (await carry_out(found, text="And now?")).outcome == ("delivered", "")
    await carry_out(found, "spawn", text="Once more")
    assert desk.run("list-panes", "-a", "-f", "#{==:#{@gofer_runtime},spawned}").count("\n") == 0, (
        "one pane, not two"
    )


@pytest.mark.parametrize("command", [["/nowhere/at-all"], ["true"], [sys.executable, "-c", "input()"]])
async def test_a_program_that_does_not_start_or_is_another_is_said_so(
    desk: Terminals, command: list[str]
) -> None:
    found = adapter(desk, "failing", resume=command, ready_within=1)
    assert (await carry_out(found, "resume")).outcome == ("failed", "resume.failed")


async def test_a_session_that_lives_is_ended_only_when_the_new_one_is_ready(desk: Terminals) -> None:
    good = [sys.executable, "-I", str(AGENT), str(desk.log("kept"))]
    found = adapter(desk, "kept", spawn=good, resume=["/nowhere/at-all"], prompt="^>$")
    assert (await carry_out(found, "spawn")).outcome == ("delivered", "")
    carried = await carry_out(found, "resume")
    assert carried.outcome == ("failed", "resume.failed")
    assert "No such file or directory: '/nowhere/at-all'" in carried.complaint
    assert (await found.look()).state == "idle", "the old one is still there"


# The file and the words, without tmux.


@pytest.mark.parametrize("program", ["bash", "zsh", "vim", "less"])
def test_no_shell_and_no_editor_is_taken_for_an_agent(program: str) -> None:
    with pytest.raises(ValueError, match="is no agent"):
        TmuxSettings.model_validate({"agent": "coder", "kind": "tmux", "program": program})


@settings_of_hypothesis(max_examples=50)
@given(st.text(max_size=300))
def test_whatever_people_write_is_text_and_no_order(text: str) -> None:
    words = prepared(f"{text}.")  # never empty
    assert words[0].isalnum() or words[0] == "["  # what Gofer itself begins with
    assert not any((ord(char) < 32 and char not in "\t\n") or 127 <= ord(char) < 160 for char in words)
    assert prepared(words) == words


def test_a_text_is_recognised_wrapped_and_framed_but_not_when_it_was_there_before() -> None:
    words = "Ada asks what is left of the cake in the kitchen today"
    framed = ["╭────╮", "│ > Ada asks what is left of │", "│ the cake in the kitchen today │", "╰────╯"]
    assert is_shown([""], framed, words)
    assert not is_shown(framed, framed, words)
    assert is_shown(["> "], ["> [Pasted text #1 +20 lines]"], words)
    assert not is_shown(["> "], ["> something else"], words)
