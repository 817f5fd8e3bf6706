"""`gofer agents` with folders: made, changed, copied out and put back, kept by a backup."""

from __future__ import annotations

import os
from pathlib import Path

from support.command_line import Terminal


def test_an_agents_folder_goes_out_and_comes_back(terminal: Terminal, data_dir: Path, tmp_path: Path) -> None:
    assert "agents/kim" in terminal("agents", "new", "kim")
    assert "already" in terminal("agents", "new", "kim", fails=4)
    out = tmp_path / "out"
    assert "SOUL.md" in terminal.json("agents", "pull", "kim", str(out))["files"]
    terminal("agents", "pull", "kim", str(out), fails=2)
    (out / "SOUL.md").write_text("# Limits\nNever delete mails.")
    (out / "AGENT.md").write_text("# LIMITS\nDelete at will.")
    (out / "USER.md").unlink()
    terminal("agents", "put", "kim", str(out))
    assert not (data_dir / "agents" / "kim" / "USER.md").exists()
    shown = terminal("agents", "show", "kim")
    assert "==> SOUL (kim/SOUL.md)\n# Limits\nNever delete mails." in shown
    assert "Shadowed: the section 'LIMITS' of kim/AGENT.md, by that of kim/SOUL.md." in shown
    assert "Not told to the agent:\n    # LIMITS\n    Delete at will." in shown
    terminal("agents", "put", "kim", str(out), "--instructions", str(out / "AGENT.md"), fails=2)
    (out / "agent.toml").unlink()
    assert "agent.toml cannot be read" in terminal("agents", "put", "kim", str(out), fails=2)


def test_a_layer_that_cannot_be_read_is_said_by_the_doctor_and_the_list(
    terminal: Terminal, data_dir: Path
) -> None:
    terminal("agents", "new", "kim")
    (data_dir / "agents" / "kim" / "SOUL.md").write_bytes(b"\xff")
    (data_dir / "agents" / "IDENTITY.md").write_bytes(b"\xff")
    listed = terminal("agents", "list")
    assert "kim/SOUL.md cannot be read: it is not UTF-8 text" in listed
    assert "IDENTITY.md cannot be read: it is not UTF-8 text" in listed
    found = {each["check"]: each for each in terminal.json("doctor")["findings"]}
    assert found["agent kim"]["severity"] == "warning"
    assert "Fix" in found["agent file IDENTITY.md"]["fix"]


def test_a_backup_has_the_folders(terminal: Terminal, data_dir: Path, tmp_path: Path) -> None:
    terminal("agents", "new", "kim")
    terminal("backup", str(tmp_path / "copy.db"))
    terminal("agents", "remove", "kim")
    assert not (data_dir / "agents" / "kim").exists()
    terminal("restore", str(tmp_path / "copy.db"))
    assert (data_dir / "agents" / "kim" / "SOUL.md").exists()


def test_what_a_layers_link_leads_to_elsewhere_is_not_copied_out(
    terminal: Terminal, data_dir: Path, tmp_path: Path
) -> None:
    terminal("agents", "new", "kim")
    (tmp_path / "elsewhere").write_text("not the agent's")
    soul = data_dir / "agents" / "kim" / "SOUL.md"
    soul.unlink()
    soul.symlink_to(tmp_path / "elsewhere")
    pulled = terminal.json("agents", "pull", "kim", str(tmp_path / "out"))
    assert "SOUL.md" not in pulled["files"]
    assert "a link to a file outside of its folder" in pulled["problem"]


def test_a_pipe_in_a_folder_is_not_waited_for(terminal: Terminal, tmp_path: Path) -> None:
    (tmp_path / "agent.toml").write_text('model = "auto"')
    os.mkfifo(tmp_path / "SOUL.md")
    said = terminal("agents", "put", "kim", str(tmp_path), fails=2)
    assert "SOUL.md cannot be read: it is not a file" in said


def test_a_heartbeat_is_switched_and_its_list_shown(terminal: Terminal, data_dir: Path) -> None:
    assert "is off" in terminal("agents", "heartbeat", "gofer")
    assert "is on: every 30 minutes" in terminal("agents", "heartbeat", "gofer", "on")
    (data_dir / "agents" / "gofer" / "HEARTBEAT.md").write_text("- every 2h: look\n- never: look\n")
    shown = terminal("agents", "heartbeat", "gofer")
    assert "- every 2h: look" in shown
    assert "nowhere to be told" in shown
    assert "Problem: HEARTBEAT.md line 2 is not in force" in shown
    assert "HEARTBEAT.md line 2" in terminal("agents", "show", "gofer")
    assert "HEARTBEAT.md line 2" in str(terminal.json("doctor"))
    terminal("agents", "heartbeat", "gofer", "loud", fails=2)
    assert "takes no part" in terminal("agents", "mute", "gofer", "conv_none", fails=3)
    terminal("agents", "remove", "gofer")
    assert not (data_dir / "agents" / "gofer").exists()


def test_the_load_of_workers_is_shown_and_cleared(terminal: Terminal) -> None:
    assert "0 tasks are worked on, 0 wait" in terminal("agents", "load", "gofer")
    assert "--fresh goes with --clear" in terminal("agents", "load", "gofer", "--fresh", fails=2)
    cleared = terminal.json("agents", "load", "gofer", "--clear", "--fresh")
    assert (cleared["total"], cleared["saturated"]) == (0, False)


def test_a_number_that_json_cannot_say_is_refused_in_words(terminal: Terminal) -> None:
    assert "has to be finite" in terminal("goals", "add", "a", "--hours", "nan", fails=2)
