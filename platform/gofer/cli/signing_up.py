"""The browser's part of a sign-up: a page on loopback that posts the form, and takes the answer."""

from __future__ import annotations

import asyncio
import contextlib
import hmac
import socket
import sys
import webbrowser
from dataclasses import dataclass, field
from html import escape
from typing import TYPE_CHECKING, Any

from gofer.cli.calling import Api
from gofer.cli.exits import FAILED, Failed

if TYPE_CHECKING:
    from starlette.requests import Request
    from starlette.responses import Response

WITHIN = 1800.0
_PAGE = """<!doctype html><html lang="en"><meta charset="utf-8"><title>Gofer</title>
<style>body{{font:16px/1.5 system-ui;max-width:42rem;margin:3rem auto;padding:0 1rem}}</style>{body}</html>"""


@dataclass
class Waiting:
    """A form on its way to a service and back."""

    begun: dict[str, Any]
    came: asyncio.Future[str] = field(default_factory=lambda: asyncio.get_running_loop().create_future())

    async def form(self, request: Request) -> Response:
        """What is asked for and why, and the button."""
        form = self.begun["form"]
        asks = "".join(f"<li><b>{escape(what)}</b> {escape(why)}" for what, why in form["asks"].items())
        fields = "".join(
            f'<input type="hidden" name="{escape(name)}" value="{escape(value)}">'
            for name, value in form["fields"].items()
        )
        return _page(
            f"<h1>Connect Gofer</h1><p>The account that is made may:</p><ul>{asks}</ul>"
            f'<form method="post" action="{escape(form["url"])}">{fields}<button>Continue</button></form>'
        )

    async def back(self, request: Request) -> Response:
        """The service's answer. One that does not carry our state is somebody else's doing."""
        state, code = request.query_params.get("state", ""), request.query_params.get("code", "")
        if not code or not hmac.compare_digest(state.encode(), self.begun["state"].encode()):
            return _page("<h1>Refused</h1><p>This answer does not belong to this sign-up.</p>", 400)
        if not self.came.done():
            self.came.set_result(code)
        return _page("<h1>Thank you</h1><p>The rest is in your terminal.</p>")


def _page(body: str, status: int = 200) -> Response:
    from starlette.responses import HTMLResponse

    policy = "default-src 'none'; style-src 'unsafe-inline'; frame-ancestors 'none'"
    headers = {
        "content-security-policy": policy,
        "referrer-policy": "no-referrer",
        "cache-control": "no-store",
    }
    return HTMLResponse(_PAGE.format(body=body), status, headers)


async def sign_up(api: Api, wish: dict[str, Any], *, open_browser: bool) -> Any:
    """Show the form, wait for the answer, and have the connection made."""
    from starlette.applications import Starlette
    from starlette.routing import Route

    from gofer.web.server import listening

    async with contextlib.AsyncExitStack() as stack:
        listener = stack.enter_context(socket.create_server(("127.0.0.1", 0)))
        listener.setblocking(False)
        here = f"http://127.0.0.1:{listener.getsockname()[1]}"
        waiting = Waiting(await api.ask("POST", "/sign-ups", json={**wish, "back_url": f"{here}/back"}))
        app = Starlette(routes=[Route("/", waiting.form), Route("/back", waiting.back)])
        await stack.enter_async_context(listening(app, listener))
        print(
            f"Open {here} in a browser on this machine, and follow it. Waiting …", file=sys.stderr, flush=True
        )
        if open_browser:
            webbrowser.open(here)
        try:
            code = await asyncio.wait_for(waiting.came, WITHIN)
        except TimeoutError:
            raise Failed("Nobody came back from there. Nothing was changed.", FAILED) from None
        finish = {"state": waiting.begun["state"], "code": code}
        return await api.ask("POST", "/sign-ups/finish", json=finish)
