"""The settings of workers: by rule instead of by model, and none at all."""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gofer.store.tables import tasks
from gofer_sandbox.docker import Docker
from gofer_standins import loopback
from gofer_standins.anthropic import Anthropic, Reply, call, calls, say
from sandbox.docker_engine import docker_engine
from support.async_bridge import Elsewhere
from support.patience import Deadline
from support.web_server import House

WANTED = [
    {"kind": "research", "title": "Find the lighthouse", "instructions": "Where is the lighthouse?"},
    {"kind": "execution", "title": "Build it", "instructions": "Build a lighthouse."},
]


def script(request: Mapping[str, Any]) -> Reply:
    last = request["messages"][-1]["content"]
    result = next((json.dumps(block["content"]) for block in last if block["type"] == "tool_result"), "")
    if "delegate" not in {tool["name"] for tool in request["tools"]}:
        return say("There is no delegate.")
    return say(f"Results: {result}") if result else calls(call("delegate", tasks=WANTED))


@pytest.fixture
def model(elsewhere: Elsewhere) -> Iterator[tuple[Anthropic, str]]:
    made = Anthropic(script)
    serving = loopback.serve(made.app)
    yield made, elsewhere.run(serving.__aenter__())
    elsewhere.run(serving.__aexit__(None, None, None))


def answer(folder: Path, model: tuple[Anthropic, str], **settings: Any) -> tuple[str, list[Any]]:
    """What the model was told last, and the tasks, after one message."""
    folder.mkdir(mode=0o700)
    house = House(folder, anthropic_key=model[0].key, anthropic_base_url=model[1], **settings)
    try:
        api = house.api(house.token(house.owner()))
        assert api.post("/messages", json={"text": "The lighthouse stands on the hill."}).status_code == 202
        deadline = Deadline(30)
        while not any(job["kind"] == "deliver" for job in api.get("/jobs").json()["jobs"]):
            assert deadline.left > 0
            time.sleep(0.05)
        rows = house.read(lambda connection: connection.execute(select(tasks)).all())
        return json.dumps(model[0].received[-1]["messages"]), list(rows)
    finally:
        house.close()


def test_by_rule_only_the_run_itself_calls_a_model(tmp_path: Path, model: tuple[Anthropic, str]) -> None:
    told, rows = answer(tmp_path / "data", model, workers="local")
    assert len(model[0].received) == 2
    assert "by rule" in told or "Nothing was found" in told
    assert "only the planner can do this" in told
    assert [(row.kind, row.state) for row in rows] == [("research", "done"), ("execution", "failed")]


def test_beside_docker_execution_is_refused_and_research_has_no_files(
    tmp_path: Path, model: tuple[Anthropic, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    with tempfile.TemporaryDirectory() as place, docker_engine(Path(place)) as engine:
        Path(place).chmod(0o711)
        monkeypatch.setitem(Docker.__init__.__kwdefaults__ or {}, "engine", engine.address)
        docker = {"sandbox": "docker", "sandbox_image": "debian:12", "spare_shells": 0, "keep_shells": False}
        told, rows = answer(tmp_path / "data", model, **docker)
    assert "docker cannot share them" in told
    assert [(row.kind, row.state, row.reason) for row in rows] == [
        ("research", "done", ""),
        ("execution", "failed", "shell"),
    ]


def test_without_workers_a_run_has_no_delegate(tmp_path: Path, model: tuple[Anthropic, str]) -> None:
    _, rows = answer(tmp_path / "data", model, workers_v1=False)
    assert rows == []
    assert all("delegate" not in json.dumps(each["tools"]) for each in model[0].received)


def test_a_worker_cannot_send_people_a_file(tmp_path: Path, model: tuple[Anthropic, str]) -> None:
    _, rows = answer(tmp_path / "data", model)
    assert [row.kind for row in rows] == ["research", "execution"]
    offered = [{tool["name"] for tool in each["tools"]} for each in model[0].received]
    working = [names for names in offered if "finish_task" in names]
    assert any("write" in names for names in working), "the execution has the agent's tools"
    assert not any("send_file" in names for names in working)
    assert any("send_file" in names for names in offered), "the run itself may"
