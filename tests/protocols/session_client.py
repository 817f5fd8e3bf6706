"""A client of the session protocol that believes nothing: every frame it gets is checked by the published schema."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import jsonschema
from websockets.sync.client import ClientConnection, connect

from support.patience import Deadline, patience
from support.web_server import House

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "protocols" / "session.schema.json").read_text("utf-8")
)


def checker(name: str) -> jsonschema.Draft202012Validator:
    """Checks a message of one kind."""
    return jsonschema.Draft202012Validator({"$ref": f"#/$defs/{name}", "$defs": SCHEMA["$defs"]})


_CHECKERS = {name: checker(name) for name in SCHEMA["$defs"]}


class SessionClient:
    """One connection, and all that came over it."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.frames: list[dict[str, Any]] = []
        self._unread: list[dict[str, Any]] = []

    def send(self, type_: str, **fields: Any) -> None:
        self.connection.send(json.dumps({"type": type_, **fields}))

    def next(self, deadline: Deadline | None = None) -> dict[str, Any]:
        """The next frame, checked."""
        deadline = deadline or Deadline(30.0)
        frame: dict[str, Any] = json.loads(self.connection.recv(timeout=deadline.left))
        _CHECKERS[f"server.{frame['type']}"].validate(frame)
        last = self.frames[-1]["seq"] if self.frames else frame["seq"]
        if frame["type"] == "session.new":
            last = 0  # another session has numbers of its own
        assert frame["seq"] in (last, last + 1), f"a gap: {frame['seq']} after {last}"
        self.frames.append(frame)
        return frame

    def until(self, wanted: Callable[[dict[str, Any]], bool]) -> dict[str, Any]:
        """The first frame of which something is so, and which was not asked for before."""
        for frame in self._unread:
            if wanted(frame):
                self._unread.remove(frame)
                return frame
        deadline = Deadline(60.0)
        while deadline.left > 0:
            if wanted(frame := self.next(deadline)):
                return frame
            self._unread.append(frame)
        raise AssertionError(f"never so; the last frames: {self.frames[-3:]}")

    def wait(self, type_: str, **fields: Any) -> dict[str, Any]:
        """The first frame of a kind."""
        return self.until(lambda frame: frame["type"] == type_ and fields.items() <= frame.items())

    def ask(self, type_: str, **fields: Any) -> dict[str, Any]:
        """Send a message and return the first answer to it."""
        id_ = fields.pop("id", f"r{len(self.frames)}")
        self.send(type_, id=id_, **fields)
        return self.until(lambda frame: frame.get("request") == str(id_))

    def say(self, text: str, **fields: Any) -> str:
        """Say something and return the answer."""
        self.send("chat.send", content=text, **fields)
        return str(self.wait("session.receive")["content"])


@contextlib.contextmanager
def session(
    house: House, token: str, agent: str = "gofer", headers: dict[str, str] | None = None, **query: Any
) -> Iterator[SessionClient]:
    """A connection to an agent."""
    url = f"{house.url.replace('http', 'ws')}/v1/agents/{agent}/stream?{urlencode(query)}"
    given = {"Authorization": f"Bearer {token}"} if token else {}
    bounds: Any = {"max_size": None, "open_timeout": patience(30), "close_timeout": 1}
    with connect(url, additional_headers={**given, **(headers or {})}, proxy=None, **bounds) as connection:
        yield SessionClient(connection)
