"""Other people's clients of OpenClaw's gateway protocol, unchanged, against our server."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from benchmarks.node_peers import NODE, ROOT, NotInstalled, install

from gofer.cli.devices import new_key, write_identity
from protocols.gateway_client import EVENTS, SCHEMA, checker
from support.patience import patience
from support.web_server import House

pytestmark = pytest.mark.peer

HERE = Path(__file__).parent
SDK = "openclaw-sdk==2.1.0"


@pytest.fixture(scope="module")
def packages() -> Path:
    """OpenClaw's packages from npm."""
    try:
        return install(ROOT / "benchmarks" / "node" / "gateway" / "package.json", ROOT / ".bench" / "gateway")
    except NotInstalled as error:
        pytest.skip(str(error))


def test_our_excerpt_of_the_schema_is_the_published_one(packages: Path) -> None:
    whole = packages / "node_modules" / "@openclaw" / "gateway-protocol" / "protocol.schema.json"
    published = json.loads(whole.read_text("utf-8"))["definitions"]
    ours = SCHEMA["definitions"]
    assert {name: published[name] for name in ours} == ours


@pytest.mark.parametrize("how", ["plain", "device"])
def test_the_reference_client_holds_a_conversation(
    packages: Path, house: House, token: str, how: str
) -> None:
    url = f"{house.url.replace('http', 'ws')}/gateway"
    told = _run([str(NODE), str(HERE / "gateway_peer.mjs"), url, token, how], packages)
    assert told["gaps"] == []
    for kind, frame in told["frames"]:
        checker(kind).validate(frame)
        if (payload := EVENTS.get(frame.get("event", ""))) is not None:
            checker(payload).validate(frame["payload"])
    assert told["started"] == "started"
    assert "one two" in told["answer"]
    assert told["aborted"] is True
    assert [role for role, _ in told["history"]][:2] == ["user", "assistant"]
    assert told["again"] == "ok"
    assert "three" in told["last"]
    assert told["final"]["status"] == "ok"
    assert "four" in told["final"]["result"]["payloads"][0]["text"]
    assert "wizard.start" in told["refused"]


def _run(command: list[str], folder: Path, **environment: str) -> dict[str, Any]:
    done = subprocess.run(
        command,
        cwd=folder,
        env={"PATH": os.environ["PATH"], **environment},
        capture_output=True,
        text=True,
        timeout=patience(90),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    answer: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    return answer


@pytest.fixture(scope="module")
def sdk() -> Path:
    """OpenClaw's SDK from PyPI, in a folder of its own."""
    place = ROOT / ".bench" / "openclaw-sdk"
    if not (place / "openclaw_sdk").is_dir():
        pip = [sys.executable, "-m", "pip", "install", "-q", "--disable-pip-version-check"]
        done = subprocess.run(
            [*pip, "--target", str(place), SDK], capture_output=True, text=True, timeout=600
        )
        if done.returncode:
            pytest.skip(f"{SDK} cannot be installed here: {done.stderr[-300:]}")
    return place


def test_the_sdk_from_pypi_holds_a_conversation(sdk: Path, house: House, token: str, tmp_path: Path) -> None:
    _pair(house, token, tmp_path / ".openclaw")
    url = f"{house.url.replace('http', 'ws')}/gateway"
    command = [sys.executable, str(HERE / "gateway_peer.py"), url]
    told = _run(command, tmp_path, HOME=str(tmp_path), PYTHONPATH=str(sdk))
    assert told["success"] is True
    assert "one two" in told["content"]
    assert told["tools"] == ["bash"]
    assert "aborted" in told["aborted"]
    assert [role for role, _ in told["history"]][:2] == ["user", "assistant"]
    assert "three" in told["after"]
    assert told["healthy"] is True


def _pair(house: House, token: str, folder: Path) -> None:
    """Make a device and its files, as `gofer devices pair --openclaw` does."""
    key = new_key()
    made = house.api(token).post("/devices", json={"name": "peer", "public_key": key["public"]})
    write_identity(folder / "identity", key, made.json())
