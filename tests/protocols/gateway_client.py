"""A client of OpenClaw's gateway protocol that believes nothing: every frame it gets is checked by the published
schema."""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import jsonschema
from websockets.sync.client import ClientConnection, connect

from support.patience import Deadline, patience
from support.web_server import House

SCHEMA = json.loads(
    (Path(__file__).parents[2] / "docs" / "protocols" / "openclaw.schema.json").read_text("utf-8")
)
ALL = ("operator.admin", "operator.read", "operator.write", "operator.approvals", "operator.pairing")
RESULTS = {
    "connect": "HelloOk",
    "agents.list": "AgentsListResult",
    "models.list": "ModelsListResult",
    "sessions.delete": "SessionsDeleteResult",
}
EVENTS = {"chat": "ChatEvent", "agent": "AgentEvent", "tick": "TickEvent", "shutdown": "ShutdownEvent"}
Frame = dict[str, Any]


def checker(name: str) -> jsonschema.Draft7Validator:
    """Checks what has a definition of its own."""
    return jsonschema.Draft7Validator(SCHEMA["definitions"][name])


_CHECKERS = {name: checker(name) for name in SCHEMA["definitions"]}


class GatewayRefused(Exception):
    """A request was answered with an error."""

    def __init__(self, error: Frame) -> None:
        super().__init__(f"{error['code']}: {error['message']}")
        self.error = error
        self.code: str = error["code"]
        self.detail: str = error.get("details", {}).get("code", "")


class GatewayClient:
    """One connection, and all that came over it."""

    def __init__(self, connection: ClientConnection) -> None:
        self.connection = connection
        self.frames: list[Frame] = []
        self.hello: Frame = {}
        self._unread: list[Frame] = []
        self._numbers = itertools.count(1)
        self._methods: dict[str, str] = {}
        self._last_seq = 0
        self._let_in = False

    def next(self, within: float = 10.0) -> Frame:
        """The next frame, checked."""
        frame: Frame = json.loads(self.connection.recv(timeout=Deadline(within).left))
        self._check(frame)
        self.frames.append(frame)
        return frame

    def _check(self, frame: Frame) -> None:
        if frame["type"] == "event":
            _CHECKERS["EventFrame"].validate(frame)
            assert self._let_in or frame["event"] == "connect.challenge", "told before it was let in"
            if name := EVENTS.get(frame["event"]):
                _CHECKERS[name].validate(frame["payload"])
            for entry in frame["payload"]["presence"] if frame["event"] == "presence" else ():
                _CHECKERS["PresenceEntry"].validate(entry)
            if "stateVersion" in frame:
                _CHECKERS["StateVersion"].validate(frame["stateVersion"])
            if "seq" in frame:
                assert frame["seq"] == self._last_seq + 1, f"a gap: {frame['seq']} after {self._last_seq}"
                self._last_seq = frame["seq"]
            return
        _CHECKERS["ResponseFrame"].validate(frame)
        method = self._methods.get(frame["id"], "")
        self._let_in = self._let_in or (frame["ok"] and method == "connect")
        if frame["ok"] and method in RESULTS:
            _CHECKERS[RESULTS[method]].validate(frame["payload"])
        if frame["ok"] and method == "sessions.list":
            for row in frame["payload"]["sessions"]:
                _CHECKERS["SessionRow"].validate(row)

    def until(self, wanted: Callable[[Frame], bool], within: float = 10.0) -> Frame:
        """The first frame of which something is so, and which was not asked for before."""
        for frame in self._unread:
            if wanted(frame):
                self._unread.remove(frame)
                return frame
        deadline = Deadline(within)
        while deadline.left > 0:
            if wanted(frame := self.next(within)):
                return frame
            self._unread.append(frame)
        raise AssertionError(f"never so; the last frames: {self.frames[-3:]}")

    def event(self, name: str, **fields: Any) -> Frame:
        """The payload of the first event of a kind."""

        def fits(frame: Frame) -> bool:
            return frame.get("event") == name and bool(fields.items() <= frame["payload"].items())

        payload: Frame = self.until(fits)["payload"]
        return payload

    def send(self, method: str, params: Any = None, **more: Any) -> str:
        """Send a request and return its id."""
        id_ = f"r{next(self._numbers)}"
        self._methods[id_] = method
        self.connection.send(
            json.dumps({"type": "req", "id": id_, "method": method, "params": params, **more})
        )
        return id_

    def response(self, id_: str) -> Any:
        """What a request was answered with; raises GatewayRefused."""
        frame = self.until(lambda frame: frame["type"] == "res" and frame["id"] == id_)
        if not frame["ok"]:
            raise GatewayRefused(frame["error"])
        return frame["payload"]

    def ask(self, method: str, **params: Any) -> Any:
        """Send a request and return its answer; raises GatewayRefused."""
        return self.response(self.send(method, params))

    def refused(self, method: str, **params: Any) -> GatewayRefused:
        """The error that a request is answered with."""
        try:
            answer = self.ask(method, **params)
        except GatewayRefused as error:
            return error
        raise AssertionError(f"{method} was answered {answer}")

    def say(self, text: str, key: str, session: str = "agent:gofer:main", within: float = 10.0) -> str:
        """Say something and return the answer."""
        self.ask("chat.send", sessionKey=session, message=text, idempotencyKey=key)

        def is_final(frame: Frame) -> bool:
            said = frame.get("payload", {}) if frame.get("event") == "chat" else {}
            return (said.get("runId"), said.get("state")) == (key, "final")

        return text_of(self.until(is_final, within)["payload"])


def text_of(payload: Frame) -> str:
    """What a final event says."""
    return "".join(block["text"] for block in payload["message"]["content"])


def hello_params(token: str, **more: Any) -> Frame:
    """What a client introduces itself with."""
    client = {"id": "test", "version": "1", "platform": "linux", "mode": "test"}
    given = {"minProtocol": 4, "maxProtocol": 4, "client": client, "role": "operator", "scopes": list(ALL)}
    return {**given, **({"auth": {"token": token}} if token else {}), **more}


@contextlib.contextmanager
def line(url: str, headers: dict[str, str] | None = None, path: str = "/gateway") -> Iterator[GatewayClient]:
    """A connection on which nothing was said yet but the challenge, which is read."""
    where = url.replace("http", "ws") + path
    bounds: Any = {"max_size": None, "open_timeout": patience(30), "close_timeout": 1}
    with connect(where, additional_headers=headers, proxy=None, **bounds) as connection:
        client = GatewayClient(connection)
        challenge = client.next()
        assert challenge["event"] == "connect.challenge"
        yield client


@contextlib.contextmanager
def gateway(house: House, token: str, **params: Any) -> Iterator[GatewayClient]:
    """A client that is connected."""
    with line(house.url) as client:
        client.hello = client.ask("connect", **hello_params(token, **params))
        yield client
