"""OpenClaw's gateway protocol, versions 3 and 4: a WebSocket of requests, answers and events at `/gateway`.

A client says who it is in its first frame, so this is the one socket that strangers may open. Until they have said who
they are, everything about them is bounded: how long, how large, how many in all and from one address.
`docs/protocols/openclaw.md` is the contract.
"""

from __future__ import annotations

import asyncio
import contextlib
import secrets
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import structlog
from sqlalchemy import Connection
from starlette.websockets import WebSocket, WebSocketDisconnect

from gofer import __version__
from gofer.app import Platform
from gofer.devices import find_device
from gofer.errors import GoferError, TooBusy, TooOften
from gofer.jobs.notifications import JOBS
from gofer.web.auth import NotSignedIn, Visitor, audited_as, caller_of
from gofer.web.auth.client_address import network_of
from gofer.web.auth.devices import DEVICE_TOKEN, by_device, device_used
from gofer.web.auth.sessions import Recognised, by_session, by_token
from gofer.web.chat import rooms
from gofer.web.client_socket import (
    MAX_UNREAD,
    Allowance,
    Allowances,
    ClientSocket,
    ClientSockets,
    CloseCodes,
)
from gofer.web.problems import problem
from gofer.web.protocols import (
    gateway_chat,
    gateway_control,
    gateway_devices,
    gateway_instance,
    gateway_sessions,
)
from gofer.web.protocols.gateway_client import GatewayCall, GatewayClient, GatewayCredential, Method
from gofer.web.protocols.gateway_devices import check_device, let_device_in
from gofer.web.protocols.gateway_events import GatewayAnnouncer
from gofer.web.protocols.gateway_follow import now_ms
from gofer.web.protocols.gateway_frames import (
    MAX_BEFORE_CONNECT,
    MAX_PAYLOAD,
    TICK_INTERVAL,
    ConnectParams,
    Frame,
    GatewayError,
    RequestFrame,
    Unreadable,
    allowed_scopes,
    chosen_version,
    granted_scopes,
    invalid,
    read_params,
    read_request,
    refusal,
    response,
)

log = structlog.get_logger()

HANDSHAKE_TIMEOUT = 10.0
"""Seconds in which a client has to say who it is."""
MAX_STRANGERS, MAX_STRANGERS_PER_ADDRESS = 500, 100
"""Connections of those who have not said who they are, on this process."""
MAX_CONNECTIONS = 2000
"""Of one member, on this process."""
MAX_CREDENTIAL = 200
BURST, PER_SECOND = 100.0, 20.0
"""Requests of one connection, at once and on average."""
FREE_FAILURES, FAILURES_PER_SECOND = 20.0, 0.2
"""Wrong tokens from one address; more are told to wait."""
AGENTS_FOR = 5.0
"""Seconds for which the list of agents is good."""
LARGE = 256 * 1024
"""Characters of a frame from which on it is read beside the event loop."""
POLICY_VIOLATION, PROTOCOL_ERROR = 1008, 1002
CODES = CloseCodes(not_allowed=POLICY_VIOLATION, too_slow=POLICY_VIOLATION, flooded=POLICY_VIOLATION)
METHODS: dict[str, Method] = {
    **gateway_chat.METHODS,
    **gateway_sessions.METHODS,
    **gateway_instance.METHODS,
    **gateway_control.METHODS,
    **gateway_devices.METHODS,
}
"""Everything that a client may ask for; any other method is refused by name."""
EVENTS = (
    *("connect.challenge", "tick", "shutdown", "presence", "health", "heartbeat", "cron"),
    *("chat", "agent", "session.message", "session.tool", "sessions.changed"),
)


@dataclass(frozen=True, slots=True)
class _Greeted:
    """A client that has said who it is."""

    client: GatewayClient
    request_id: str
    device_token: str


class GatewayDoor:
    """The clients of this process."""

    def __init__(self, platform: Platform) -> None:
        self._platform = platform
        self._sockets = ClientSockets(self._check)
        self._announcer = GatewayAnnouncer(platform)
        self._strangers: Counter[str] = Counter()
        """By network."""
        self._failures = Allowances(FREE_FAILURES, FAILURES_PER_SECOND)
        self._by_token = Allowances()
        self._agents: tuple[float, list[str]] = (-AGENTS_FOR, [])

    async def socket(self, websocket: WebSocket) -> None:
        """The endpoint."""
        address = network_of(caller_of(websocket).address)
        try:
            with self._counted(address):
                await websocket.accept()
                socket = ClientSocket(websocket, allowance=Allowance(BURST, PER_SECOND), codes=CODES)
                greeted = await self._handshake(socket, address)
        except TooBusy as error:
            await websocket.send_denial_response(problem(503, str(error), code=error.code, retry_after=5))
            return
        if greeted is not None:
            socket.is_known()
            await self._serve(greeted)

    @contextlib.contextmanager
    def _counted(self, address: str) -> Iterator[None]:
        if self._strangers.total() >= MAX_STRANGERS or self._strangers[address] >= MAX_STRANGERS_PER_ADDRESS:
            raise TooBusy("Too many clients are connecting. Try again in a moment.")
        self._strangers[address] += 1
        try:
            yield
        finally:
            self._strangers[address] -= 1
            if not self._strangers[address]:
                del self._strangers[address]

    # The handshake.

    async def _handshake(self, socket: ClientSocket, address: str) -> _Greeted | None:
        """Who connects; None when they did not say, which closes the socket."""
        nonce = secrets.token_urlsafe(24)
        challenge = {"nonce": nonce, "ts": now_ms()}
        async with socket.closing("gateway.handshake_failed"):
            socket.limit_messages(MAX_BEFORE_CONNECT)
            await socket.send_json({"type": "event", "event": "connect.challenge", "payload": challenge})
            try:
                async with asyncio.timeout(HANDSHAKE_TIMEOUT):
                    message = await socket.receive()
            except TimeoutError:
                await socket.close(POLICY_VIOLATION, "handshake timeout")
                return None
            return await self._greeted(socket, message, address, nonce)
        return None

    async def _greeted(self, socket: ClientSocket, message: Any, address: str, nonce: str) -> _Greeted | None:
        about = ""
        try:
            frame = read_request(message, MAX_BEFORE_CONNECT)
            about = frame.id
            if frame.method != "connect":
                raise invalid("invalid handshake: the first request must be connect")
            params = read_params(ConnectParams, "connect", frame.params)
            version = chosen_version(params.minProtocol, params.maxProtocol)
            if params.role != "operator":
                raise invalid(f"the role {params.role[:40]!r} is not supported: connect as operator")
            check_device(params, nonce)
            visitor, allowed, credential = await self._recognise(socket.websocket, params, address)
            device_token, paired = await self._admit(socket.websocket, params, visitor, allowed, credential)
            if paired and params.device is not None:
                credential = replace(credential, device=params.device.id)
            client = GatewayClient(
                platform=self._platform,
                socket=socket,
                visitor=visitor,
                credential=credential,
                version=version,
                info=params.client,
                allowed=allowed,
                scopes=granted_scopes(params.scopes, allowed),
                agent_names=self._agent_names,
                announcer=self._announcer,
            )
            return _Greeted(client, frame.id, device_token)
        except GoferError as error:
            await self._refuse(socket, error, error.about if isinstance(error, Unreadable) else about)
            return None

    async def _refuse(self, socket: ClientSocket, error: GoferError, about: str) -> None:
        await socket.send_json(refusal(about, error))
        details = getattr(error, "details", {})
        mismatch = details.get("code") == "PROTOCOL_MISMATCH"
        await socket.close(PROTOCOL_ERROR if mismatch else POLICY_VIOLATION, str(error))

    async def _recognise(
        self, websocket: WebSocket, params: ConnectParams, address: str
    ) -> tuple[Visitor, frozenset[str], GatewayCredential]:
        """Who connects, by the token in the frame, or as the request itself says; raises GatewayError."""
        caller = caller_of(websocket)
        token = (params.auth.token or params.auth.deviceToken or "").strip()
        if token.startswith(DEVICE_TOKEN):
            if params.device is None:
                raise invalid("device identity required with a device token", "DEVICE_IDENTITY_REQUIRED")
            credential = GatewayCredential("device", token, params.device.id)
        elif token:
            credential = GatewayCredential("token", token)
        elif caller.session:
            credential = GatewayCredential("session", caller.session)
        else:
            header = websocket.headers.get("authorization", "").partition(" ")[2].strip()
            credential = GatewayCredential("token", header)
        if not credential.value:
            words = "unauthorized: send a token of Gofer as auth.token. `gofer tokens add` makes one."
            raise invalid(words, "AUTH_TOKEN_MISSING")
        found = await self._visitor(credential)
        if found is None:
            raise self._unknown(address, credential)
        visitor, allowed = found
        if not visitor.member_id or not allowed:
            raise invalid("unauthorized: this token has no scope for messages", "AUTH_SCOPE_MISMATCH")
        return visitor, allowed, credential

    async def _admit(
        self,
        websocket: WebSocket,
        params: ConnectParams,
        visitor: Visitor,
        allowed: frozenset[str],
        credential: GatewayCredential,
    ) -> tuple[str, bool]:
        """Let in the device that a client names; returns a token that is new for it, and whether the device is paired.
        Raises GatewayError."""
        if params.device is None:
            return "", False
        if credential.kind == "device":
            await self._platform.database.write(partial(device_used, id_=credential.device))
            return "", True
        near = websocket.scope["gofer.peers"].is_this_machine(websocket.scope, websocket.headers)
        wanted = granted_scopes(params.scopes, allowed)
        # A refusal is a value: raised, it would take back the request to be paired.
        entry = await self._platform.database.write(
            partial(
                let_device_in,
                vault=self._platform.vault,
                params=params,
                visitor=visitor,
                scopes=wanted,
                near=near,
                address=caller_of(websocket).address,
            )
        )
        if isinstance(entry, GatewayError):
            self._platform.signals.wake(JOBS)
            raise entry
        return entry

    def _unknown(self, address: str, credential: GatewayCredential) -> GatewayError:
        if not self._failures.spend(address):
            return GatewayError(
                "UNAVAILABLE", "too many wrong tokens", detail="AUTH_RATE_LIMITED", retry_after=30
            )
        code = "AUTH_DEVICE_TOKEN_MISMATCH" if credential.kind == "device" else "AUTH_TOKEN_MISMATCH"
        return invalid("unauthorized: the token is unknown, revoked or expired", code)

    async def _visitor(self, credential: GatewayCredential) -> tuple[Visitor, frozenset[str]] | None:
        """Whom a credential speaks for now, and the scopes that it may have."""
        if not 0 < len(credential.value) <= MAX_CREDENTIAL:
            return None
        if credential.kind == "device":
            device = await self._platform.database.read(
                partial(by_device, value=credential.value, id_=credential.device)
            )
            if device is None:
                return None
            visitor, scopes = device
            return visitor, frozenset(granted_scopes(scopes, allowed_scopes(visitor)))
        look = by_session if credential.kind == "session" else by_token
        found = await self._platform.database.read(
            partial(_recognised, look=look, value=credential.value, device=credential.device)
        )
        return (found.visitor, allowed_scopes(found.visitor)) if found is not None else None

    # The conversation.

    async def _serve(self, greeted: _Greeted) -> None:
        client, socket = greeted.client, greeted.client.socket
        socket.credential = client.credential.device, client.credential.value
        socket.websocket.state.gateway = client
        socket.limit_messages(MAX_PAYLOAD)
        socket.say_last(client.last_words)
        async with socket.closing("gateway.socket_failed"):
            try:
                with (
                    self._sockets.entered(socket, client.visitor.member_id, most=MAX_CONNECTIONS),
                    self._announcer.entered(client),
                ):
                    await self._welcome(greeted)
                    await socket.run(self._hear(client))
            except TooBusy as error:
                await self._refuse(socket, error, greeted.request_id)
            finally:
                await client.leave()

    async def _agent_names(self) -> list[str]:
        """The agents there are, read once for all clients."""
        read_at, found = self._agents
        if time.monotonic() - read_at > AGENTS_FOR:
            found = await rooms.choosable(self._platform)
            self._agents = time.monotonic(), found
        return found

    async def _welcome(self, greeted: _Greeted) -> None:
        hello = await self._hello(greeted.client, greeted.device_token)
        await greeted.client.socket.send_json(response(greeted.request_id, hello))
        greeted.client.greeted = True
        self._announcer.tell_since(hello["snapshot"]["stateVersion"])

    async def _hello(self, client: GatewayClient, device_token: str) -> Frame:
        issued = {"deviceToken": device_token, "issuedAtMs": now_ms()} if device_token else {}
        limits = {"maxPayload": MAX_PAYLOAD, "maxBufferedBytes": MAX_UNREAD}
        return {
            "type": "hello-ok",
            "protocol": client.version,
            "server": {"version": __version__, "connId": client.id},
            "features": {"methods": sorted(METHODS), "events": list(EVENTS)},
            "snapshot": {
                "presence": self._announcer.present(client),
                "health": await self._announcer.health(client),
                "stateVersion": self._announcer.versions,
                "uptimeMs": gateway_instance.uptime_ms(self._platform),
            },
            "auth": {"role": "operator", "scopes": list(client.scopes), **issued},
            "policy": {**limits, "tickIntervalMs": int(TICK_INTERVAL * 1000)},
        }

    async def _check(self, websocket: WebSocket) -> None:
        """Raises NotSignedIn once a client's credential holds no longer."""
        client: GatewayClient = websocket.state.gateway
        found = await self._visitor(client.credential)
        if found is None:
            raise NotSignedIn("The token is revoked or has expired, or the device was removed.")
        client.visitor, client.allowed = found

    async def _hear(self, client: GatewayClient) -> None:
        while True:
            await self._answer(client, await client.socket.receive())

    async def _answer(self, client: GatewayClient, message: Any) -> None:
        try:
            large = len(message.get("text") or "") > LARGE
            read = partial(read_request, message, MAX_PAYLOAD)
            frame = await asyncio.to_thread(read) if large else read()
        except Unreadable as error:
            await client.socket.send_json(refusal(error.about, error))
            return
        try:
            method = await self._admitted(client, frame)
            call = GatewayCall(client, frame.id, frame.method, frame.params)
            if method.waits:
                client.later(self._done(call, method))
                return
        except NotSignedIn:
            raise
        except GoferError as error:
            await client.socket.send_json(refusal(frame.id, error))
            return
        await self._done(call, method)

    async def _admitted(self, client: GatewayClient, frame: RequestFrame) -> Method:
        """The method that a client asks for, if it may; raises GatewayError."""
        if not self._by_token.spend(client.credential.value):
            raise TooOften("Too many requests with this token.", retry_after=1)
        method = METHODS.get(frame.method)
        if method is None:
            known = "connect is the first request only" if frame.method == "connect" else "unknown method"
            raise invalid(f"{known}: {frame.method[:100]}")
        await self._check(client.socket.websocket)
        if method.scope not in client.granted:
            raise GatewayError("FORBIDDEN", f"missing scope: {method.scope}", missingScope=method.scope)
        return method

    async def _done(self, call: GatewayCall, method: Method) -> None:
        """Do what was asked and answer it."""
        try:
            params = read_params(method.params, call.method, call.params)
            whole = replace(call, params=params)
            done = await (recorded(whole, method) if method.audited else method.handler(whole))
            answer = response(call.id, done)
        except NotSignedIn:
            raise
        except GoferError as error:
            answer = refusal(call.id, error)
        except (WebSocketDisconnect, TimeoutError):
            raise
        except Exception:
            log.exception("gateway.method_failed", method=call.method[:100])
            failed = GatewayError("UNAVAILABLE", "It failed here. The server's log says why.")
            answer = refusal(call.id, failed)
        await call.client.socket.send_json(answer)


def _recognised(
    connection: Connection, look: Callable[..., Recognised | None], value: str, device: str
) -> Recognised | None:
    """Whose credential it is; nobody's any more once the paired device that it came with was removed."""
    row = find_device(connection, device) if device else None
    removed = device and (row is None or row.paired_at is None)
    return None if removed else look(connection, value)


async def recorded(call: GatewayCall, method: Method) -> Any:
    """Do something that is put on record: before it is done, and how it ended."""
    caller, visitor = caller_of(call.client.socket.websocket), call.client.visitor
    named = (getattr(call.params, name, None) for name in ("id", "jobId", "key", "name"))
    subject = next((each for each in named if each), "")
    return await audited_as(
        call.client.platform,
        visitor,
        lambda: method.handler(call),
        action=f"gateway.{call.method}",
        subject=str(subject),
        address=caller.address,
    )
