"""The host over a strict stand-in of Gofer's API, which goes away, repeats itself and makes no sense."""

from __future__ import annotations

import ast
import asyncio
import contextlib
import json
import os
import signal
import sys
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from gofer.client.mcp_api import CallerApi, OperationCall, Problem
from gofer.errors import ConfigError
from gofer.runtime_host.configuration import HostSettings, TmuxSettings, read_file
from gofer.runtime_host.host import RuntimeHost
from gofer.runtime_host.interfaces import HostReport
from gofer.runtime_host.state import OrderJournal, StateFolder
from support.patience import eventually
from support.terminals import AGENT, Terminals, needs_tmux, terminals

SOURCES = Path(__file__).parents[3]
ANNOUNCED = {"agent", "kind", "host", "state", "session", "program", "can_resume", "can_spawn", "crashed"}
REPORTED = {"status", "reason", "session", "text"}


class StandInApi(CallerApi):
    """Takes what Gofer takes, and nothing else."""

    def __init__(self) -> None:
        self.orders: list[Any] = []
        self.over: set[str] = set()
        self.announced: list[Mapping[str, Any]] = []
        self.reports: list[tuple[str, str, str]] = []
        self.crashes_known: list[int] = []
        """How many crashes were announced when each report came."""
        self.away = 0
        """How many calls meet no server."""
        self.refused = 0
        self.calls = 0

    async def send(self, request: OperationCall) -> tuple[int, bytes]:
        self.calls += 1
        if self.away:
            self.away -= 1
            raise Problem(503, "unreachable", "The server went away.")
        if self.refused:
            return self.refused, json.dumps({"code": "refused", "detail": "The token is unknown."}).encode()
        return 200, json.dumps(await self._answer(request)).encode()

    async def _answer(self, request: OperationCall) -> Any:
        if request.method == "PUT":
            assert set(request.body) - {"gone"} == ANNOUNCED
            assert not request.body.get("gone") or request.body["state"] == "offline"
            self.announced.append(request.body)
            return {"heartbeat_every": 0.1}
        if request.method == "GET":
            assert set(request.query) - {"fresh", "working"} == {"host", "wait"}
            found, self.orders = self.orders, []
            over = [id for id in request.query.get("working", "").split(",") if id in self.over]
            if not found and not over:
                await asyncio.sleep(0.02)
            return {"orders": found, "over": over}
        assert set(request.body) == REPORTED
        self.crashes_known.append(sum(each["crashed"] for each in self.announced))
        self.reports.append((request.path.rpartition("/")[2], request.body["status"], request.body["reason"]))
        return {"ignored": False}

    async def me(self) -> Mapping[str, Any]:
        raise AssertionError("the host does not ask who it is")


@pytest.fixture(scope="module")
def desk() -> Iterator[Terminals]:
    with terminals() as made:
        yield made


@pytest.fixture(autouse=True)
def quick_retries(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("gofer.runtime_host.host.FIRST_DELAY", 0.01)
    monkeypatch.setattr("gofer.runtime_host.host.LONGEST_DELAY", 0.05)


def settings(folder: Path, socket: str = "", name: str = "coder", **more: Any) -> HostSettings:
    runtime = {
        "agent": "coder",
        "kind": "tmux",
        "pane": f"desk:{name}",
        "program": AGENT.name,
        "socket": socket or str(folder / "none"),
        **more,
    }
    return HostSettings.model_validate({"host": "laptop", "runtimes": {name: runtime}})


@contextlib.asynccontextmanager
async def running(api: StandInApi, folder: Path, given: HostSettings) -> AsyncIterator[list[str]]:
    said: list[str] = []
    host = RuntimeHost(given, api, StateFolder(folder / "state"), said.append)
    stop = asyncio.Event()
    work = asyncio.create_task(host.run(stop))
    try:
        yield said
    finally:
        stop.set()
        await work


def order(id: str, runtime: str = "coder", **more: Any) -> dict[str, Any]:
    return {"id": id, "runtime": runtime, "action": "deliver", "text": "Hello", "lease": 120, **more}


async def test_a_gofer_that_goes_away_is_dialled_again_and_told_what_it_missed(tmp_path: Path) -> None:
    api = StandInApi()
    api.away = 5
    async with running(api, tmp_path, settings(tmp_path, resume=["not-installed-here"])) as said:
        await eventually(lambda: any("not-installed-here is not on the PATH" in each for each in said))
        await eventually(lambda: api.announced, within=10)
        assert api.announced[0]["state"] == "offline"
        await eventually(lambda: "Gofer is there again." in said, within=10)
        api.orders = [order("7-1")]
        await eventually(lambda: api.reports, within=10)
        api.away = 3
    assert api.reports[0][:2] == ("7-1", "failed")
    assert said.count("No orders: Gofer cannot be reached; trying again.") <= 2, "said once each time"


async def test_orders_without_sense_are_refused_and_the_host_lives_on(tmp_path: Path) -> None:
    api = StandInApi()
    async with running(api, tmp_path, settings(tmp_path)):
        strange: list[Any] = [
            None,
            1,
            "x",
            {},
            {"id": 5},
            order("8-1", action="rm -rf"),
            order("8-2", text=7),
        ]
        api.orders = [*strange, order("8-3", runtime="somebody-else"), order("8-4", quiet={"quiet": -1})]
        await eventually(lambda: len(api.reports) == 4, within=10)
    assert sorted(api.reports) == [
        ("8-1", "failed", "order.malformed"),
        ("8-2", "failed", "order.malformed"),
        ("8-3", "failed", "order.unknown_runtime"),
        ("8-4", "failed", "order.malformed"),
    ]


async def test_a_token_that_is_refused_ends_the_host_only_at_its_first_call(tmp_path: Path) -> None:
    api = StandInApi()
    api.refused = 401
    with pytest.raises(ConfigError, match="refuses the token"):
        async with running(api, tmp_path, settings(tmp_path)):
            await asyncio.sleep(0.2)
    api.refused = 0
    async with running(api, tmp_path, settings(tmp_path)) as said:
        await eventually(lambda: api.announced, within=10)
        api.refused = 401
        await eventually(lambda: any("token is unknown" in words for words in said), within=10)
        api.refused = 0
        await eventually(lambda: "Gofer is there again." in said, within=10)


@needs_tmux
async def test_an_order_that_is_handed_out_twice_is_delivered_once(tmp_path: Path, desk: Terminals) -> None:
    desk.agent("coder")
    api = StandInApi()
    given = settings(tmp_path, desk.socket)
    async with running(api, tmp_path, given):
        await eventually(lambda: api.announced and api.announced[-1]["state"] == "live", within=10)
        api.orders = [order("9-1"), order("9-1"), order("9-2")]
        await eventually(lambda: len(api.reports) == 2, within=10)
        assert sorted(api.reports) == [("9-1", "delivered", ""), ("9-2", "failed", "runtime.busy")]
        api.orders = [order("9-1")]
        await eventually(lambda: len(api.reports) == 3, within=10)
    assert api.reports[2] == ("9-1", "delivered", ""), "said again, and not done again"
    async with running(api, tmp_path, given):
        api.orders = [order("9-1")]
        await eventually(lambda: len(api.reports) == 4, within=10)
    assert len(desk.told("coder")) == 1
    assert api.announced[-1]["state"] == "offline"
    assert not api.announced[-1]["can_spawn"]


@needs_tmux
async def test_a_host_that_is_stopped_gives_back_what_it_has_not_begun(
    tmp_path: Path, desk: Terminals
) -> None:
    pane = desk.agent("waiting")
    os.write(desk.person(pane), b"x\x15")
    api = StandInApi()
    async with running(api, tmp_path, settings(tmp_path, desk.socket, "waiting")):
        api.orders = [order("10-1", "waiting", quiet={"quiet": 3000, "at_most": 3000}, lease=0.4)]
        await eventually(lambda: len(api.reports) >= 3, within=10)
    assert {status for _, status, _ in api.reports[:-1]} == {"deferred"}, "again and again, to keep the lease"
    assert api.reports[-2] == ("10-1", "deferred", "deferred.typing")
    assert api.reports[-1] == ("10-1", "failed", "host.draining")
    assert desk.told("waiting") == []


@needs_tmux
async def test_an_order_that_is_forced_while_somebody_types_is_delivered(
    tmp_path: Path, desk: Terminals
) -> None:
    os.write(desk.person(desk.agent("urgent")), b"x\x15")
    api, quiet = StandInApi(), {"quiet": 3000, "look_every": 0.05, "at_most": 3000}
    async with running(api, tmp_path, settings(tmp_path, desk.socket, "urgent")):
        api.orders = [order("11-1", "urgent", quiet=quiet)]
        await eventually(lambda: api.reports == [("11-1", "deferred", "deferred.typing")], within=10)
        api.orders = [order("11-1", "urgent", quiet=quiet, force=True)]
        await eventually(lambda: "delivered" in [status for _, status, _ in api.reports], within=10)
    assert len(desk.told("urgent")) == 1, "once"


@needs_tmux
async def test_an_order_that_is_over_while_somebody_types_is_not_delivered(
    tmp_path: Path, desk: Terminals
) -> None:
    os.write(desk.person(desk.agent("stopped")), b"x\x15")
    api, quiet = StandInApi(), {"quiet": 3000, "look_every": 0.05, "at_most": 3000}
    async with running(api, tmp_path, settings(tmp_path, desk.socket, "stopped")):
        api.orders = [order("12-1", "stopped", quiet=quiet)]
        await eventually(lambda: api.reports == [("12-1", "deferred", "deferred.typing")], within=10)
        api.over = {"12-1"}
        await eventually(lambda: api.reports[-1] == ("12-1", "failed", "trigger.over"), within=10)
    assert desk.told("stopped") == []


@needs_tmux
async def test_a_program_that_fails_has_crashed_once_and_a_pane_that_is_closed_has_not(
    tmp_path: Path, desk: Terminals
) -> None:
    pane = desk.agent("mortal")
    api = StandInApi()
    command = [sys.executable, "-I", str(AGENT), str(desk.log("mortal"))]
    given = settings(tmp_path, desk.socket, "mortal", spawn=command, prompt="^>$")

    async def becomes(state: str) -> None:
        await eventually(lambda: [each["state"] for each in api.announced[-3:]] == [state] * 3, within=10)

    async def started(number: int) -> str:
        api.orders = [order(f"12-{number}", "mortal", action="spawn")]
        await eventually(lambda: len(api.reports) == number, within=20)
        await becomes("idle")
        return desk.run("list-panes", "-a", "-f", "#{==:#{@gofer_runtime},mortal}", "-F", "#{pane_id}")

    async with running(api, tmp_path, given):
        await becomes("idle")
        desk.run("kill-pane", "-t", pane)
        await becomes("offline")
        desk.run("kill-pane", "-t", await started(1))
        await becomes("offline")
        desk.run("send-keys", "-t", await started(2), "C-d")
        await becomes("offline")
        assert not any(each["crashed"] for each in api.announced), "people closed it, or it ended by itself"
        failing = desk.run("display-message", "-p", "-t", await started(3), "#{pane_pid}")
        os.kill(int(failing), signal.SIGKILL)
        await becomes("offline")
        await started(4)  # what is left of it is cleared away
    assert sum(each["crashed"] for each in api.announced) == 1


async def test_every_crash_is_told_before_what_became_of_its_order(tmp_path: Path) -> None:
    """The platform chooses the next hop by how often the program has failed."""
    api = StandInApi()
    command = [sys.executable, str(AGENT.with_name("acp_agent.py")), str(tmp_path)]
    runtime = {"agent": "coder", "kind": "acp", "command": command}
    given = HostSettings.model_validate({"host": "laptop", "runtimes": {"coder": runtime}})
    async with running(api, tmp_path, given):
        for number, action in enumerate(("prompt", "resume", "spawn"), 1):
            api.orders = [order(f"14-{number}", action=action, text="die")]
            await eventually(lambda: len(api.reports) == number, within=30)  # noqa: B023 # it is awaited here
    assert {status for _, status, _ in api.reports} == {"failed"}
    assert api.crashes_known == [1, 2, 3]


@needs_tmux
async def test_a_tmux_server_that_is_started_again_has_a_new_session_of_the_agent(tmp_path: Path) -> None:
    with terminals() as desk:
        desk.agent("again")
        command = [sys.executable, "-I", str(AGENT), str(desk.log("again"))]
        api, given = StandInApi(), settings(tmp_path, desk.socket, "again", resume=command)
        async with running(api, tmp_path, given):
            await eventually(lambda: api.announced and api.announced[-1]["state"] == "live", within=10)
            desk.run("kill-server")
            await eventually(lambda: api.announced[-1]["state"] == "offline", within=10)
            api.orders = [order("13-1", "again")]
            await eventually(lambda: api.reports == [("13-1", "failed", "runtime.gone")], within=10)
            api.orders = [order("13-2", "again", action="resume")]
            await eventually(lambda: len(api.reports) == 2, within=20)
            assert api.reports[1] == ("13-2", "delivered", "")
            await eventually(lambda: api.announced[-1]["state"] == "live", within=10)
            await eventually(lambda: len(desk.told("again")) == 1, within=10)
            # Its user starts an agent again where the file says: the session that the host started stays the one.
            desk.run("new-session", "-d", "-s", "desk", "-n", "other", "sleep 1000")
            desk.agent("again")
            api.orders = [order("13-3", "again")]
            await eventually(lambda: len(api.reports) == 3, within=20)
        assert not any(each["crashed"] for each in api.announced)


# What is kept.


def test_the_journal_survives_a_cut_line_and_keeps_the_newest(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gofer.runtime_host.state.MAX_ORDERS", 5)
    folder = StateFolder(tmp_path / "state")
    journal = OrderJournal(folder)
    for number in range(30):
        journal.begin(str(number))
        journal.finish(str(number), HostReport(status="delivered"))
        journal.told(str(number))
    assert len((folder.path / "orders.jsonl").read_text().splitlines()) <= 21
    journal.begin("begun", "coder", "end")
    journal.begin("done")
    journal.finish("done", HostReport(status="answered", text="a secret answer"))
    path = folder.path / "orders.jsonl"
    path.write_bytes(path.read_bytes() + b'{"order": "cut", "en')
    again = OrderJournal(folder)
    assert again.interrupted == [("begun", "coder", "end")]
    assert again.untold["done"].text == "a secret answer"
    again.told("done")
    third = OrderJournal(folder)
    assert not third.untold
    assert third.knows("done")
    assert not third.knows("cut")
    assert not third.knows("1")
    assert "secret answer" not in path.read_text(), "what was told is not kept"
    assert path.stat().st_mode & 0o077 == 0


def test_an_installation_is_the_same_after_a_restart_and_another_elsewhere(tmp_path: Path) -> None:
    one = StateFolder(tmp_path / "one")
    assert one.instance == StateFolder(tmp_path / "one").instance
    assert one.instance != StateFolder(tmp_path / "two").instance
    (tmp_path / "one").chmod(0o755)
    with pytest.raises(ConfigError, match="chmod 700"):
        StateFolder(tmp_path / "one")


GOOD = '[runtimes.coder]\nagent = "coder"\nkind = "tmux"\nprogram = "claude"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "runtimes: is required"),
        ("runtimes = 1", "runtimes"),
        (GOOD + 'shell = "sh"', "shell: is not known here"),
        (GOOD.replace("claude", "zsh"), "zsh is no agent"),
        (GOOD.replace("claude", ""), "no name of a program"),
        (GOOD.replace("claude", "/usr/bin/claude"), "no name of a program"),
        (GOOD + 'prompt = "["', "is no regular expression"),
        (GOOD + 'cwd = "/nowhere/at/all"', "a folder that exists"),
        (GOOD + 'spawn = "claude --continue"', "valid list"),
        (GOOD + 'env = ["A=B"]', "env"),
        (GOOD + 'pane = "-t"', "pane"),
        (GOOD.replace("tmux", "telnet"), "kind"),
        ('[runtimes."../x"]\nagent = "coder"\nkind = "tmux"\nprogram = "claude"', "runtimes"),
        ('url = "file:///etc"\n' + GOOD, "url"),
        ("\x00", "is not TOML"),
        ('[runtimes.coder]\nagent = "coder"\nkind = "acp"\ncommand = []', "command"),
    ],
)
def test_a_file_that_cannot_work_is_refused_in_words(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "runtimes.toml"
    path.write_text(text)
    path.chmod(0o600)
    with pytest.raises(ConfigError) as refused:
        read_file(path)
    assert words in str(refused.value)


def test_a_socket_is_a_path_or_the_name_of_a_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", "/usr")
    given = {"agent": "coder", "kind": "tmux", "program": "x"}
    made = [TmuxSettings.model_validate({**given, "socket": each}) for each in ("", "~/s", "/run/s", "work")]
    assert [each.socket for each in made] == ["", "/usr/s", "/run/s", f"/tmp/tmux-{os.geteuid()}/work"]


def test_a_file_that_others_could_have_written_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "runtimes.toml"
    path.write_text(GOOD)
    path.chmod(0o600)
    assert read_file(path).runtimes["coder"].agent == "coder"
    path.chmod(0o620)
    with pytest.raises(ConfigError, match="chmod go-w"):
        read_file(path)
    path.chmod(0o600)
    if os.geteuid() == 0:
        os.chown(path, 12345, 12345)
        with pytest.raises(ConfigError, match="belongs to another user"):
            read_file(path)
        os.chown(path, 0, 0)
    tmp_path.chmod(0o777)
    with pytest.raises(ConfigError, match="Others may exchange"):
        read_file(path)
    with pytest.raises(ConfigError, match="cannot be read"):
        read_file(tmp_path / "none")
    with pytest.raises(ConfigError, match="not a regular file"):
        read_file(tmp_path)


def test_nothing_but_the_host_knows_terminals_and_the_protocol() -> None:
    found = set()
    for root in ("platform", "integrations", "sandbox", "supervisor"):
        for path in (SOURCES / root).rglob("*.py"):
            text = path.read_text(encoding="utf-8")
            if "libtmux" in text or "acp" in text:
                imported = {name for node in ast.walk(ast.parse(text)) for name in _imported(node)}
                found |= {path.parent.name} if imported & {"libtmux", "acp"} else set()
    assert found == {"runtime_host"}


def _imported(node: ast.AST) -> list[str]:
    if isinstance(node, ast.Import):
        return [alias.name.partition(".")[0] for alias in node.names]
    return (
        [(node.module or "").partition(".")[0]] if isinstance(node, ast.ImportFrom) and not node.level else []
    )
