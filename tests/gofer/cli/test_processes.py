"""Processes: they start where they may, end in good order, and hand over what they could not finish."""

from __future__ import annotations

import json
import os
import signal
import socket
import stat
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest

from gofer.agent.models.offline import Offline
from gofer.store.sqlite import held
from gofer.web.unix_socket import reachable
from gofer_sandbox import processes
from gofer_standins.hello import Fault
from support.command_line import SIGNING_KEY, Hello, Process, Terminal, control, gofer
from support.patience import patience, until

Start = Callable[..., Process]


@pytest.fixture
def connect(terminal: Terminal, hello: Hello, tmp_path: Path) -> Callable[[], str]:
    """Add a connection to the stand-in, beside a server or before one."""

    def add() -> str:
        key = tmp_path / "key.txt"
        key.write_text(SIGNING_KEY)
        made = terminal.json(
            *("connections", "add", "hello", "--set", f"reply_url={hello.service.url}"),
            *("--secret-file", f"signing_key={key}"),
        )
        return str(made["connection"]["id"])

    return add


def test_work_in_hand_is_finished_before_the_end(
    start: Start, connect: Callable[[], str], hello: Hello
) -> None:
    server = start().wait_until_ready()
    id_ = connect()
    hello.service.faults.append(Fault("stalled", 1))
    hello.post(server.url, id_, "m1")
    until(lambda: not hello.service.faults)
    assert server.stop() == 0
    assert hello.replies_to("m1") == ["m1"]
    assert "process.stopped" in server.text()
    assert not (server.data_dir / "gofer.sock").exists()
    assert SIGNING_KEY not in server.text()


@pytest.mark.slow
def test_work_that_takes_too_long_is_handed_over_and_done_once(
    start: Start, connect: Callable[[], str], hello: Hello, terminal: Terminal, data_dir: Path
) -> None:
    id_ = connect()
    with held(data_dir / "gofer.db"):
        server = start(stop_within="0")
        until(lambda: "store.waiting" in server.text())
    server.wait_until_ready()  # it waited for the command that had the file
    hello.service.faults.append(Fault("stalled", 1))
    hello.post(server.url, id_, "m1")
    until(lambda: not hello.service.faults)
    assert server.stop() == 0
    deliver = next(job for job in terminal.json("jobs", "list")["jobs"] if job["kind"] == "deliver")
    assert (deliver["state"], deliver["reason"]) == ("ready", "worker.stopped")
    until(lambda: hello.replies_to("m1"))
    start().wait_until_ready()
    until(lambda: all(job["state"] == "done" for job in control(server.data_dir, "/jobs")["jobs"]))
    assert hello.replies_to("m1") == ["m1"]


@pytest.mark.slow
def test_shells_that_live_on_are_named_at_the_end(start: Start, data_dir: Path) -> None:
    def serve(**settings: str) -> Process:
        server = start(log_to="file", sandbox="unconfined", **settings)
        until(lambda: "is ready at" in server.text())
        return server

    first = serve()
    there = json.loads(gofer(data_dir, "say", "--json", "$ echo x").stdout)["conversation_id"]
    assert first.stop() == 0
    assert f"Shells that live on until then: {there}." in first.text()
    second = start("serve", "--demo", log_to="file", sandbox="unconfined")  # which has no use for it
    shown = until(lambda: "makes another" in second.text() and second.text()).strip().splitlines()
    assert "demo" not in "".join(shown), "it is played on a new instance alone"
    assert shown[-2].startswith(f"Open {ready_at(shown)}/link/"), "the link comes last"
    assert max(map(len, shown)) < 200
    assert second.stop() == 0
    assert there in second.text()
    last = serve(keep_shells="false")
    assert last.stop() == 0
    assert there not in last.text()


def ready_at(shown: list[str]) -> str:
    """The address that a server says it is ready at."""
    return next(line.rpartition(" ")[2] for line in shown if "is ready at" in line)


def test_a_second_signal_ends_it_at_once(start: Start, connect: Callable[[], str], hello: Hello) -> None:
    server = start(stop_within="60").wait_until_ready()
    id_ = connect()
    hello.service.faults.append(Fault("stalled", 30))
    hello.post(server.url, id_, "m1")
    until(lambda: not hello.service.faults)
    server.process.send_signal(signal.SIGINT)
    until(lambda: "process.stopping" in server.text())
    assert server.stop() == 130


def test_a_taken_port_is_one_clear_line(terminal: Terminal) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        line = terminal("serve", "--port", str(port), fails=78)
    assert f"127.0.0.1:{port}" in line
    assert f"--port {port + 1}" in line


def test_the_socket_is_for_its_user_alone_and_a_stale_one_is_replaced(start: Start, data_dir: Path) -> None:
    with reachable(data_dir / "gofer.sock") as name, socket.socket(socket.AF_UNIX) as killed:
        killed.bind(name)  # and never removed, as by a process that was killed
    server = start().wait_until_ready()
    assert stat.S_IMODE((data_dir / "gofer.sock").stat().st_mode) == 0o600
    assert control(data_dir, "/status")["pid"] == server.process.pid


@pytest.mark.slow
def test_web_and_worker_apart_on_postgres(
    start: Start, hello: Hello, postgres_url: str, data_dir: Path, tmp_path: Path
) -> None:
    key = tmp_path / "key.txt"
    key.write_text(SIGNING_KEY)
    (data_dir / "agents").mkdir(mode=0o700)
    (data_dir / "agents" / "gofer.toml").write_text(f'model = "{Offline.name}"')
    web = start("web", database_url=postgres_url, anthropic_key="sk-none").wait_until_ready()
    worker = start("worker", database_url=postgres_url, anthropic_key="sk-none").wait_until_ready()
    made = gofer(
        data_dir,
        *("connections", "add", "hello", "--set", f"reply_url={hello.service.url}", "--json"),
        *("--secret-file", f"signing_key={key}"),
        database_url=postgres_url,
    )
    id_ = json.loads(made.stdout)["connection"]["id"]
    assert hello.post(web.url, id_, "m1").json() == {"result": "accepted"}
    until(lambda: hello.replies_to("m1"))
    roles = {each["roles"] for each in control(data_dir, "/status")["processes"]}
    assert roles == {"web", "worker"}
    # What a model will need is there before a message does; where no agent runs, it never is.
    until(lambda: "models.loaded" in worker.text())
    assert "models.loaded" not in web.text()
    assert worker.stop() == 0
    assert hello.post(web.url, id_, "m2").json() == {"result": "accepted"}
    assert web.stop() == 0
    assert hello.replies_to("m2") == []
    start("worker", database_url=postgres_url).wait_until_ready()
    until(lambda: hello.replies_to("m2"))


def test_shells_are_listed_shown_and_closed(start: Start, terminal: Terminal) -> None:
    server = start(sandbox="unconfined", spare_shells="0").wait_until_ready()
    assert "No shells." in terminal("shells", "list")
    terminal("say", "$ echo hi > notes.txt")
    (shell,) = terminal.json("shells", "list")["shells"]
    named = shell["conversation_id"], "gofer"
    line = terminal("shells", "list").splitlines()[-1]
    assert line.split()[:3] == [*named, shell["provider"]]
    assert "notes.txt" in terminal("shells", "show", *named)
    terminal("shells", "show", shell["conversation_id"], "nobody", fails=3)
    assert "closed. Its processes end within a minute." in terminal("shells", "close", *named)
    terminal("shells", "close", *named, fails=3)
    said = terminal("say", "--conversation", shell["conversation_id"], "$ cat notes.txt")
    assert "hi" in said, "its files stay for the next shell"
    assert server.stop() == 0
    assert "end once Gofer runs: it does not run here now." in terminal("shells", "close", *named)


@pytest.mark.slow
def test_shells_left_running_are_named_taken_over_and_ended_where_none_are_to_be_kept(
    start: Start, terminal: Terminal
) -> None:
    server = start(sandbox="bubblewrap", spare_shells="0").wait_until_ready()
    until(lambda: any(line["event"] == "sandbox.probed" for line in server.log()))
    probed = next(line for line in server.log() if line["event"] == "sandbox.probed")
    if probed["isolation"] == "none":
        pytest.skip("no isolation on this machine")
    lasting = f"sleep 4242.{os.getpid()}"
    terminal("say", f"$ A=kept; {lasting} >/dev/null &")
    assert server.stop() == 0
    [left] = [line for line in server.log() if line["event"] == "shells.left_running"]
    [conversation] = left["conversations"]
    assert _running(lasting)
    server = start(sandbox="bubblewrap", spare_shells="0").wait_until_ready()
    said = terminal("say", "--conversation", conversation, "$ echo $A; jobs -p | wc -l")
    assert "kept\n1\n" in said, "the same shell"
    assert server.stop() == 0
    start(sandbox="bubblewrap", keep_shells="false").wait_until_ready()
    until(lambda: not _running(lasting))


def _running(command: str) -> bool:
    pids = map(int, filter(str.isdigit, os.listdir("/proc")))
    return command in map(processes.command_line, pids)


def test_a_long_path_is_no_obstacle_and_systemd_is_told(
    start: Start, tmp_path: Path, terminal: Terminal, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("d" * 60) / ("e" * 60)
    deep.mkdir(parents=True, mode=0o700)
    monkeypatch.setenv("GOFER_DATA_DIR", str(deep))
    monkeypatch.setenv("NOTIFY_SOCKET", str(tmp_path / "notify"))
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listener:
        listener.bind(str(tmp_path / "notify"))
        listener.settimeout(patience(60))
        server = start(at=deep)
        assert listener.recv(100) == b"READY=1"
        assert terminal.json("status")["pid"] == server.process.pid
        server.process.send_signal(signal.SIGTERM)
        assert listener.recv(100) == b"STOPPING=1"


# What one server that stands there can show.


@pytest.fixture(scope="module")
def standing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Process]:
    data_dir = tmp_path_factory.mktemp("standing") / "data"
    data_dir.mkdir(mode=0o700)
    server = Process(data_dir, prot="80")
    yield server.wait_until_ready()
    server.close()


def test_a_misspelt_variable_is_in_the_log(standing: Process) -> None:
    (line,) = _lines(standing, "settings.unknown")
    assert (line["variable"], line["nearest"]) == ("GOFER_PROT", "GOFER_PORT")


def test_the_doctor_names_a_variable_that_only_the_server_has(standing: Process) -> None:
    told = json.loads(gofer(standing.data_dir, "doctor", "--json").stdout)["findings"]
    (found,) = [each for each in told if "GOFER_PROT" in each["line"]]
    assert "GOFER_PORT" in found["fix"]


def test_a_second_process_on_the_file_is_refused(standing: Process) -> None:
    second = gofer(standing.data_dir, "serve", "--port", "0")
    assert second.returncode == 75
    assert f"pid {standing.process.pid}" in second.stderr.splitlines()[-1]
    assert "GOFER_DATABASE_URL" in second.stderr
    assert control(standing.data_dir, "/status")["pid"] == standing.process.pid


def test_a_taken_port_is_told_before_the_demo_is_played(standing: Process, tmp_path: Path) -> None:
    port = standing.url.rpartition(":")[2]
    refused = gofer(tmp_path / "fresh", "serve", "--demo", "--port", port)
    assert refused.returncode == 78
    assert "Cannot listen" in refused.stderr
    assert refused.stdout == ""


def test_health_and_metrics(standing: Process) -> None:
    assert httpx2.get(f"{standing.url}/healthz").status_code == 200
    assert httpx2.get(f"{standing.url}/readyz").json()["status"] == "ready"
    assert "gofer_jobs" in httpx2.get(f"{standing.url}/metrics").text


def test_on_the_network_control_is_for_those_who_are_known(standing: Process) -> None:
    assert httpx2.get(f"{standing.url}/api/v1/status").status_code == 401


def test_the_log_has_the_ids(standing: Process, hello: Hello, tmp_path: Path) -> None:
    key = tmp_path / "key.txt"
    key.write_text(SIGNING_KEY)
    made = gofer(
        standing.data_dir,
        *("connections", "add", "hello", "--set", f"reply_url={hello.service.url}", "--json"),
        *("--secret-file", f"signing_key={key}"),
    )
    id_ = json.loads(made.stdout)["connection"]["id"]
    answer = hello.post(standing.url, id_, "m1")
    until(lambda: [line["kind"] for line in _worked(standing)] == ["answer", "deliver"])
    (request,) = [line for line in _lines(standing, "request") if line["path"] == f"/hooks/{id_}"]
    assert request["request"] == answer.headers["x-request-id"]
    assert request["delivery"] == 1
    assert all(line["job"] and line["attempt"] == 1 for line in _worked(standing))


def test_talking_from_a_terminal(standing: Process) -> None:
    answered = gofer(standing.data_dir, "say", "$ echo from a terminal")
    assert (answered.returncode, answered.stderr) == (0, "")
    assert "echo from a terminal" in answered.stdout
    began = json.loads(gofer(standing.data_dir, "say", "--json", "$ echo more").stdout)
    assert "echo more" in began["answer"]
    there = began["conversation_id"]
    chatted = gofer(standing.data_dir, "chat", "--conversation", there, stdin="$ echo again\n/status\n")
    assert (chatted.returncode, chatted.stderr) == (0, "")
    assert "echo again" in chatted.stdout
    assert "I am doing nothing here" in chatted.stdout
    assert f"--conversation {there}" in chatted.stdout
    assert "$0.0000" in gofer(standing.data_dir, "costs").stdout
    assert gofer(standing.data_dir, "say", "--conversation", "conv_none", "hello").returncode == 3
    assert "GOFER_LOG_TO=file" in gofer(standing.data_dir, "logs").stderr


def _worked(process: Process) -> list[dict[str, Any]]:
    return [line for line in _lines(process, "job.concluded") if line["kind"] in ("answer", "deliver")]


def _lines(process: Process, event: str) -> list[dict[str, Any]]:
    return [line for line in process.log() if line["event"] == event]


def test_a_refused_request_is_seen_by_status_and_doctor(
    standing: Process, terminal: Terminal, hello: Hello, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("GOFER_DATA_DIR", str(standing.data_dir))
    assert hello.post(standing.url, "hello_nobody", "m1").status_code == 401
    refusal = terminal.json("status", "--refusals")["refusals"][0]
    assert (refusal["status"], refusal["connection"]) == (401, "hello_nobody")
    assert "refused requests" in terminal("doctor")
