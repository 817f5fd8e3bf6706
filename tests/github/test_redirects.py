"""Where GitHub may send a request, and what goes along."""

from __future__ import annotations

import pytest
from github.Auth import Token
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from gofer.errors import Permanent
from gofer_github.client import Client
from gofer_standins.loopback import serve


async def test_a_redirect_is_followed_within_the_api_and_nowhere_else() -> None:
    """With its method, query and body; the token goes to no other host, port, scheme or path."""
    seen: list[tuple[str, str, bytes]] = []
    elsewhere: list[str] = []

    async def answer(request: Request) -> Response:
        seen.append((request.method, f"{request.url.path}?{request.url.query}", await request.body()))
        if (goal := goals.get(request.url.path)) is not None:
            status = 301 if request.method == "GET" else 307
            return JSONResponse({"message": "Moved Permanently"}, status, {"location": goal})
        return JSONResponse({"id": 7})

    async def trap(request: Request) -> Response:
        elsewhere.append(request.headers.get("authorization", ""))
        return JSONResponse({"id": 8})

    every = ["GET", "POST", "PATCH"]
    async with (
        serve(Starlette(routes=[Route("/{path:path}", answer, methods=every)])) as ours,
        serve(Starlette(routes=[Route("/{path:path}", trap, methods=every)])) as theirs,
    ):
        goals = {
            "/api/v3/repos/a/old/pulls": f"{ours}/api/v3/repositories/5/pulls?head=a%3Agofer%2F1",
            "/api/v3/repos/a/old/issues": "/api/v3/repositories/5/issues",
            "/api/v3/away": f"{theirs}/api/v3/away",
            "/api/v3/host": "//evil.invalid/api/v3/host",
            "/api/v3/tls": f"{ours.replace('http:', 'https:')}/api/v3/tls",
            "/api/v3/up": "/settings/keys",
            "/api/v3/empty": "",
            "/api/v3/round": "/api/v3/round",
        }
        client = Client(f"{ours}/api/v3", Token("canary-token"))
        assert (await client.get("/repos/a/old/pulls", head="a:gofer/1"))["id"] == 7
        assert seen[-1][:2] == ("GET", "/api/v3/repositories/5/pulls?head=a%3Agofer%2F1")
        assert (await client.post("/repos/a/old/issues", {"title": "x"}))["id"] == 7
        assert seen[-1] == ("POST", "/api/v3/repositories/5/issues?", b'{"title": "x"}')
        for path in ("/away", "/host", "/tls", "/up", "/empty", "/round"):
            with pytest.raises(Permanent, match="GitHub sends us"):
                await client.patch(path, {"body": "x"})
    assert elsewhere == []
    assert not any("/settings" in path for _, path, _ in seen)
