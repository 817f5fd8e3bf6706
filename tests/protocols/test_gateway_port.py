"""The gateway at a port of its own, where clients of OpenClaw look for it."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from e2e.process import Gofer, free_port
from protocols.gateway_client import hello_params, line
from protocols.test_session_kills import owner_token
from support.patience import until


def is_open(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def test_the_gateway_has_a_port_of_its_own_when_the_operator_gives_it_one(tmp_path: Path) -> None:
    port, folder = free_port(), tmp_path / "data"
    environment = {
        "GOFER_DATA_DIR": str(folder),
        "GOFER_PORT": "0",
        "GOFER_GATEWAY_PORT": str(port),
        "GOFER_SANDBOX": "off",
        "GOFER_LOG": "json",
    }
    server = Gofer(environment, "web", "worker", log=tmp_path / "log").wait_until_ready()
    token = owner_token(folder)
    url = f"http://127.0.0.1:{port}"
    until(lambda: is_open(port))
    for path in ("/", "/gateway"):
        with line(url, path=path) as client:
            assert client.ask("connect", **hello_params(token))["type"] == "hello-ok"
            assert client.ask("health")["ok"] is True
    # The rest of Gofer is not there.
    assert httpx2.get(f"{url}/").status_code == 401
    assert httpx2.get(f"{url}/login").status_code == 404
    with pytest.raises(InvalidStatus), line(url, path="/v1/agents/gofer/stream"):
        pass
    other = {**environment, "GOFER_DATA_DIR": str(tmp_path / "other")}
    second = Gofer(other, "web", log=tmp_path / "log of another")
    assert second.wait() != 0
    assert f"127.0.0.1:{port}" in second.log.read_text()
    assert "GOFER_GATEWAY_PORT" in second.log.read_text()
    with line(url, path="/") as client:
        client.ask("connect", **hello_params(token))
        server.signal(signal.SIGTERM)
        client.event("shutdown")
        with pytest.raises(ConnectionClosed) as closed:
            client.next()
        assert closed.value.rcvd is not None
        assert closed.value.rcvd.code == 1012
    assert server.wait() == 0
