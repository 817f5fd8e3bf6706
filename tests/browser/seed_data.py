"""A house with a past: messages answered, commands run, a question open, a run that died, money spent."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx2

from gofer.web.api import control_app
from gofer_standins.anthropic import Anthropic, Reply, call, calls, say
from gofer_standins.loopback import serve
from support.command_line import SIGNING_KEY, Hello
from support.patience import patience, until
from support.web_server import House

HOSTILE = (
    "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
    "[click](javascript:alert(1)) ![](https://example.org/spy.png) \x1b[31mred\x1b[0m\x1b]0;title\x07 \u202egnp.exe"
)
"""What a stranger might write, and a command might print."""
ACTING = (
    "<hx-partial hx-target='h1'><form hx-post='/tokens' hx-trigger='load' hx-include='[name=csrf]'>"
    "<input name=name value=stolen><input name=scope value=admin><input name=life value=30></form></hx-partial>"
)
"""What would make itself a token, were it ever part of an owner's page."""
RECITED = " ".join(f"Verse {number} of a long poem." for number in range(60))
"""What takes a while to say."""
ODD = 'a "b'
"""The name of a folder."""
KEY = "rehearsal-key-of-the-pages"


def script(request: Mapping[str, Any]) -> Reply:
    """What the model does, by what it was told last."""
    told = str(request["messages"])
    turn = sum(1 for message in request["messages"] if message["role"] == "assistant")
    if "which port" in told.lower():
        if turn == 0:
            return say(ACTING, call("ask_user", question="Which port shall I use?", choices=["8080", "9090"]))
        return say("Thank you, I shall use that one.")
    if "refuse" in told:
        return Reply(fault="invalid")
    if "recite" in told:
        return slowly(RECITED)
    if "slowly" in told:
        return (
            say("Working on it.", delay=0.3) if turn else calls(call("bash", command="sleep 2; echo slept"))
        )
    if turn == 0 and "a folder" in told:
        return calls(call("bash", command=f"mkdir '{ODD}' && touch '{ODD}/<i>note'"))
    if turn == 0:
        looking, noting = "uname -s; ls /; false", call("write", path="notes.txt", content="a kernel\n")
        return say("Let me look.", call("bash", command=looking), noting)
    return say(
        "Here is what I **found**:\n\n```python\nprint('hello')\n```\n\n| a | b |\n|---|---|\n| 1 | 2 |"
    )


def slowly(text: str) -> Reply:
    """An answer that takes two seconds and more, in some sixty pieces."""
    size = len(text) // 12 + 1
    parts = [{"type": "text", "text": text[start : start + size]} for start in range(0, len(text), size)]
    return Reply(tuple(parts), delay=0.03)


class Service:
    """The model's provider, in a thread of its own."""

    def __init__(self, says: Callable[[Mapping[str, Any]], Reply]) -> None:
        self.model = Anthropic(says, key=KEY)
        self.url = ""
        self._loop = asyncio.new_event_loop()
        self._ready, self._over = threading.Event(), asyncio.Event()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()
        assert self._ready.wait(patience(30))

    def _run(self) -> None:
        async def live() -> None:
            async with serve(self.model.app) as url:
                self.url = url
                self._ready.set()
                await self._over.wait()

        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            runner.run(live())

    def close(self) -> None:
        self._loop.call_soon_threadsafe(self._over.set)
        self._thread.join()


class Lived:
    """A house, the services around it, and short words for what happens there."""

    def __init__(self, house: House, hello: Hello) -> None:
        self.house = house
        self.hello = hello
        self.connection = ""
        self.first_waiting = 0

    def ask(self, method: str, path: str, **request: Any) -> Any:
        """The control API, as the command line uses it."""

        async def main() -> Any:
            transport = httpx2.ASGITransport(control_app(self.house.platform))
            async with httpx2.AsyncClient(transport=transport, base_url="http://gofer/api/v1") as client:
                response = await client.request(method, path, **request)
                assert response.status_code < 300, response.text
                return response.json()

        return self.house.run(main())

    def say(self, id: str, text: str, room: str = "kitchen") -> None:
        body = self.hello.service.message(id, room, text)
        url = f"{self.house.url}/hooks/{self.connection}"
        answer = httpx2.post(url, content=body, headers=self.hello.service.signed(body), timeout=patience(60))
        assert answer.json() == {"result": "accepted"}, answer.text

    def jobs(self, **query: str) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.ask("GET", "/jobs", params=query)["jobs"]
        return found

    def answered(self, *ids: str) -> None:
        until(lambda: len(self.hello.replies_to(*ids)) >= len(ids))


@contextlib.contextmanager
def lived_in(folder: Path, **settings: Any) -> Iterator[Lived]:
    """A furnished house, gone afterwards."""
    with contextlib.ExitStack() as stack:
        service, hello = Service(script), Hello()
        stack.callback(service.close)
        stack.callback(hello.close)
        house = House(folder, anthropic_base_url=service.url, **settings)
        stack.callback(house.close)
        lived = Lived(house, hello)
        _furnish(lived)
        yield lived


def _furnish(lived: Lived) -> None:
    lived.ask("PUT", "/secrets", json={"name": "anthropic_key", "value": KEY})
    made = lived.ask(
        "POST",
        "/connections",
        json={
            "integration": "hello",
            "name": "Front door",
            "settings": {"reply_url": lived.hello.service.url},
            "secrets": {"signing_key": SIGNING_KEY},
        },
    )
    lived.connection = made["connection"]["id"]
    lived.ask(
        "POST",
        "/schedules",
        json={
            "name": "nightly",
            "cron": "30 3 * * *",
            "kind": "set_up",
            "payload": {"connection_id": lived.connection},
            "timezone": "Europe/Berlin",
        },
    )
    lived.say("m1", "What is on this machine?")
    lived.say("m2", f"Look at this: {HOSTILE}", room="<b>attic</b>")
    lived.say("m4", "Please refuse this", room="refused")
    lived.say("m3", "Which port should I use?", room="workshop")
    lived.answered("m1", "m2", "m3", "m4")
    lived.first_waiting = until(lambda: lived.jobs(state="waiting"))[0]["id"]
    httpx2.post(f"{lived.house.url}/hooks/{lived.connection}", content=b"{}")
