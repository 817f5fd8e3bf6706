"""Getting in by the command line: the first link, passwords, members, tokens, and what is refused before."""

from __future__ import annotations

import json
import re
import stat
from collections.abc import Callable
from pathlib import Path

import httpx2

from support.command_line import Process, Terminal, gofer
from support.patience import until

Start = Callable[..., Process]
LINK = re.compile(r"Open (http://127\.0\.0\.1:\d+/link/\S+)")


def test_the_first_link_is_printed_until_somebody_has_used_it(
    start: Start, terminal: Terminal, tmp_path: Path
) -> None:
    server = start().wait_until_ready()
    until(lambda: LINK.search(server.text()))
    assert not [line for line in server.log() if "/link/" in str(line)]
    second = terminal("link").strip()
    assert second.startswith(server.url)
    answer = httpx2.post(second, headers={"origin": server.url})
    assert (answer.status_code, answer.headers["location"]) == (303, "/welcome")
    assert httpx2.post(second, headers={"origin": server.url}).status_code == 410
    # Members and tokens, beside the running server.
    terminal("members", "add", "anna", "--role", "operator")
    assert "already" in terminal("members", "add", "anna", fails=4)
    terminal("members", "password", "anna", stdin="a long enough password\n")
    assert "10 to 1000" in terminal("members", "password", "anna", stdin="short\n", fails=2)
    login = {"name": "anna", "password": "a long enough password"}
    assert httpx2.post(f"{server.url}/login", data=login).status_code == 303
    token = terminal("tokens", "add", "ci", "--scope", "write", "--member", "anna").strip()
    me = httpx2.get(f"{server.url}/api/v1/me", headers={"authorization": f"Bearer {token}"})
    assert me.json()["role"] == "operator"
    terminal("members", "role", "anna", "viewer")
    assert {each["name"]: each["role"] for each in terminal.json("members", "list")["members"]} == {
        "owner": "owner",
        "anna": "viewer",
    }
    (known,) = terminal.json("tokens", "list")["tokens"]
    assert known["used_at"] is not None
    terminal("tokens", "revoke", known["id"])
    assert "no token" in terminal("tokens", "revoke", known["id"], fails=3)
    # A device, with the files that OpenClaw's SDK looks for.
    folder = tmp_path / "openclaw"
    terminal("devices", "pair", "laptop", "--openclaw", str(folder))
    assert stat.S_IMODE((folder / "identity" / "device.json").stat().st_mode) == 0o600
    assert "device already" in terminal("devices", "pair", "laptop", "--openclaw", str(folder), fails=78)
    (device,) = terminal.json("devices", "list")["devices"]
    assert json.loads((folder / "identity" / "device-auth.json").read_text())["deviceId"] == device["id"]
    terminal("devices", "pair", device["id"][:16])
    terminal("devices", "remove", device["id"][:16])
    assert "no device" in terminal("devices", "remove", device["id"][:16], fails=3)
    assert "only owner" in terminal("members", "remove", "owner", "--yes", fails=4)
    terminal("members", "remove", "anna", "--yes")
    assert "no member" in terminal("link", "anna", fails=3)
    assert server.stop() == 0
    again = start().wait_until_ready()
    assert again.stop() == 0
    assert LINK.search(again.text()) is None


def test_nobody_is_let_in_from_elsewhere_without_a_password(data_dir: Path, start: Start) -> None:
    refused = gofer(data_dir, "serve", "--host", "0.0.0.0", "--port", "0")
    assert refused.returncode == 78
    assert "gofer members password owner" in refused.stderr.strip().splitlines()[-1]
    server = start("serve", "--host", "0.0.0.0", owner_password="given by the settings").wait_until_ready()
    port = server.url.rpartition(":")[2]
    login = {"name": "owner", "password": "given by the settings"}
    assert httpx2.post(f"http://127.0.0.1:{port}/login", data=login).status_code == 303
    assert "given by the settings" not in server.text()
