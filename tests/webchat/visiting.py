"""A member's browser in a room of the web chat, without a screen."""

from __future__ import annotations

import contextlib
import itertools
import json
import re
from collections.abc import Callable, Iterator
from typing import Any

from websockets.sync.client import ClientConnection, connect

from support.patience import Deadline
from support.web_server import Browser, House

WITHIN = 30.0
CSRF = r'name="gofer-csrf" content="([^"]+)"'
_numbers = itertools.count(1)


class Line:
    """A WebSocket, and everything that came over it."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.frames: list[dict[str, Any]] = []
        self.items: dict[str, str] = {}
        self.saying: dict[int, str] = {}
        """What runs are saying, as the page shows it."""
        self.cursor = ""
        self.state = ""

    def say(self, text: str = "", **more: Any) -> str:
        """Send something; returns its id."""
        id_ = more.pop("id", None) or f"message-{next(_numbers):06}"
        self.connection.send(json.dumps({"id": id_, **({"text": text} if text else {}), **more}))
        return str(id_)

    def until(self, wanted: Callable[[], Any]) -> Any:
        """Read until something is so."""
        deadline = Deadline(WITHIN)
        while not (found := wanted()):
            left = deadline.left
            assert left > 0, (
                f"never so; state {self.state}, items {list(self.items)}, last {self.frames[-3:]}"
            )
            with contextlib.suppress(TimeoutError):
                self.take(json.loads(self.connection.recv(timeout=min(left, 0.5))))
        return found

    def take(self, frame: dict[str, Any]) -> None:
        self.frames.append(frame)
        if frame["type"] == "news":
            self.cursor, self.state = frame["cursor"], frame["state"]
            self.items.update({item["id"]: item["html"] for item in frame["items"]})
        elif frame["type"] == "text":
            before = "" if frame["whole"] else self.saying.get(frame["job"], "")
            self.saying[frame["job"]] = before + frame["text"]

    def of(self, kind: str) -> list[str]:
        """The items of a kind so far."""
        return [html for id_, html in self.items.items() if id_.startswith(f"{kind}-")]

    def answers(self, count: int = 1) -> list[str]:
        """What was answered, once so much was and nothing is being done."""
        self.until(lambda: self.state == "idle" and len(self.of("reply")) >= count)
        return self.of("reply")

    def told(self, kind: str, id_: str) -> dict[str, Any]:
        """The server's word about something that was sent."""
        found: dict[str, Any] = self.until(
            lambda: next(
                (frame for frame in self.frames if (frame["type"], frame.get("id")) == (kind, id_)), None
            )
        )
        return found


class Visit:
    """A signed-in member in a room."""

    def __init__(self, house: House, member_id: str, room: str = "") -> None:
        self.house = house
        self.member_id = member_id
        self.browser: Browser = house.browser()
        assert self.browser.follow(house.link(member_id)).status_code == 303
        self.page = self.browser.get(f"/chat/{room}" if room else "/chat", follow_redirects=True).text
        if 'data-room=""' in self.page:
            begun = self.browser.post("/chat", csrf=_found(CSRF, self.page)).headers["location"]
            self.page = self.browser.get(begun).text
        self.room = _found(r'data-room="([^"]+)"', self.page)
        self.cursor = _found(r'data-cursor="([^"]+)"', self.page)
        self.csrf = _found(CSRF, self.page)

    def new_room(self) -> Visit:
        """The same member, elsewhere."""
        made = self.browser.client.post("/chat", data={"csrf": self.csrf}).headers["location"]
        return Visit(self.house, self.member_id, made.removeprefix("/chat/"))

    @contextlib.contextmanager
    def line(self, after: str = "", **headers: str) -> Iterator[Line]:
        """A WebSocket to the room."""
        given = {"Origin": self.house.url, "Cookie": f"gofer_session={self.browser.cookie}", **headers}
        url = f"{self.house.url.replace('http', 'ws')}/chat/{self.room}/live?after={after or self.cursor}"
        with connect(
            url, additional_headers=given, compression=None, max_size=None, close_timeout=1
        ) as connection:
            yield Line(connection)

    def post(self, path: str, **request: Any) -> Any:
        headers = {"x-gofer-csrf": self.csrf, **request.pop("headers", {})}
        return self.browser.client.post(f"/chat/{self.room}{path}", headers=headers, **request)

    def shown(self) -> str:
        """The page as it is now."""
        return self.browser.get(f"/chat/{self.room}").text


def _found(pattern: str, text: str) -> str:
    match = re.search(pattern, text)
    assert match is not None, text[:2000]
    return match[1]
