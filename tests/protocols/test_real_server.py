"""A real server, for what one within the tests does not have: a second port, and a log."""

from __future__ import annotations

import signal
import socket
from pathlib import Path

import httpx2
import pytest
from websockets.exceptions import ConnectionClosed, InvalidStatus

from e2e.process import Gofer, free_port
from protocols.gateway_client import GatewayRefused, hello_params, line
from protocols.test_session_kills import owner_token
from support.patience import until


def is_open(port: int) -> bool:
    with socket.socket() as caller:
        return caller.connect_ex(("127.0.0.1", port)) == 0


def test_the_gateway_has_a_port_of_its_own_and_no_log_has_a_token(tmp_path: Path) -> None:
    main, port, folder = free_port(), free_port(), tmp_path / "data"
    environment = {
        "GOFER_DATA_DIR": str(folder),
        "GOFER_PORT": str(main),
        "GOFER_GATEWAY_PORT": str(port),
        "GOFER_SANDBOX": "off",
        "GOFER_LOG": "json",
        "GOFER_LOG_LEVEL": "debug",
    }
    server = Gofer(environment, "web", "worker", log=tmp_path / "log").wait_until_ready()
    token = owner_token(folder)
    url = f"http://127.0.0.1:{port}"
    until(lambda: is_open(port))
    # In an address it opens nothing.
    for path in ("/", "/gateway"):
        with line(url, path=f"{path}?token={token}") as client, pytest.raises(GatewayRefused) as refused:
            client.ask("connect", **hello_params(""))
        assert refused.value.detail == "AUTH_TOKEN_MISSING"
    stream = f"/v1/agents/gofer/stream?token={token}"
    with pytest.raises(InvalidStatus) as denied, line(f"http://127.0.0.1:{main}", path=stream):
        pass
    assert denied.value.response.status_code == 401
    for path in ("/", "/gateway"):
        with line(url, path=path) as client:
            assert client.ask("connect", **hello_params(token))["type"] == "hello-ok"
            assert client.ask("health")["ok"] is True
    # The rest of Gofer is not there.
    assert httpx2.get(f"{url}/").status_code == 401
    assert httpx2.get(f"{url}/login").status_code == 404
    with pytest.raises(InvalidStatus), line(url, path="/v1/agents/gofer/stream"):
        pass
    other = {**environment, "GOFER_DATA_DIR": str(tmp_path / "other"), "GOFER_PORT": "0"}
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
    assert token not in server.log.read_text()
