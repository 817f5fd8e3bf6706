"""Who may call what: every route is public by decision, or asks who is there."""

from __future__ import annotations

from collections.abc import Iterator

import httpx2
from starlette.routing import BaseRoute, Mount, Route

from gofer.platform import Platform
from gofer.web.app import PUBLIC, public_app


def walk(routes: list[BaseRoute], prefix: str = "") -> Iterator[tuple[str, str]]:
    """Every path and method, also below mounts."""
    for route in routes:
        if isinstance(route, Mount):
            yield from walk(list(route.routes), prefix + route.path)
        elif isinstance(route, Route):
            for method in route.methods or {"GET"}:
                yield prefix + route.path, method
        else:
            yield prefix + str(getattr(route, "path", route)), "GET"


async def test_each_route_is_public_or_answers_401_to_a_stranger(platform: Platform) -> None:
    app = public_app(platform)
    transport = httpx2.ASGITransport(app)
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        walked = list(walk(app.routes))
        assert len(walked) >= len(PUBLIC)
        for path, method in walked:
            if path in PUBLIC:
                continue
            asked = path.replace("{", "").replace("}", "").replace(":int", "").replace(":path", "")
            response = await client.request(method, asked.replace("/id", "/1"))
            assert response.status_code in (303, 401), f"{method} {path} answered {response.status_code}"


async def test_the_public_list_names_only_routes_that_exist(platform: Platform) -> None:
    paths = {path for path, _ in walk(public_app(platform).routes)}
    assert paths >= PUBLIC


async def test_the_control_api_is_not_on_the_network(platform: Platform) -> None:
    transport = httpx2.ASGITransport(public_app(platform))
    async with httpx2.AsyncClient(transport=transport, base_url="http://127.0.0.1") as client:
        for path in ("/api/v1/status", "/api/v1/secrets", "/api/v1/jobs", "/api/v1/key/rotate"):
            for method in ("GET", "POST"):
                assert (await client.request(method, path)).status_code == 404
