"""Frames of OpenClaw's gateway protocol: what is read from a client, what it is answered, and who may ask for what.

Nothing here touches the network or the store. `docs/protocols/openclaw.md` says what of the protocol Gofer speaks.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gofer.errors import (
    Forbidden,
    GoferError,
    Malformed,
    NotFound,
    StoreError,
    TooBusy,
    TooOften,
)
from gofer.strict_json import load_json
from gofer.validation import first_error
from gofer.web.auth import NotSignedIn, Visitor
from gofer.web.auth.principal import narrowed

Frame = dict[str, Any]
VERSIONS = (3, 4)
MAX_BEFORE_CONNECT = 64 * 1024
"""Bytes of a frame of a client that has not said who it is."""
MAX_PAYLOAD = 25 * 1024 * 1024
"""Bytes of a frame of one that has."""
TICK_INTERVAL = 30.0
"""Seconds between two ticks."""
NAMELESS = "invalid"
"""The id of an answer to what could not be read."""

READ, WRITE, ADMIN = "operator.read", "operator.write", "operator.admin"
APPROVALS, PAIRING = "operator.approvals", "operator.pairing"
SCOPES = (READ, WRITE, ADMIN, APPROVALS, PAIRING)

Text = Annotated[str, Field(min_length=1, max_length=1000)]
Model = TypeVar("Model", bound=BaseModel)


class GatewayError(GoferError):
    """An error of the protocol, with its code."""

    status = 400

    def __init__(
        self, code: str, message: str, *, detail: str = "", retry_after: float | None = None, **details: Any
    ) -> None:
        super().__init__(message)
        self.code = code
        self.retry_after = retry_after
        self.details: Frame = {**({"code": detail} if detail else {}), **details}


def invalid(message: str, detail: str = "", **details: Any) -> GatewayError:
    """A request that makes no sense."""
    return GatewayError("INVALID_REQUEST", message, detail=detail, **details)


class Params(BaseModel):
    """What a method is given. Fields that Gofer does not know are ignored: the protocol grows by adding some."""

    model_config = ConfigDict(extra="ignore", strict=True)


class RequestFrame(BaseModel):
    """One request."""

    model_config = ConfigDict(extra="forbid", strict=True)

    type: Annotated[str, Field(pattern="^req$")]
    id: Annotated[str, Field(min_length=1, max_length=200)]
    method: Annotated[str, Field(min_length=1, max_length=200)]
    params: Any = None
    traceparent: Annotated[str, Field(max_length=128)] | None = None


class ClientInfo(Params):
    """The program that connects."""

    id: Text
    version: Text
    platform: Text
    mode: Text
    displayName: Text | None = None
    deviceFamily: Text | None = None
    instanceId: Text | None = None


class DeviceProof(Params):
    """A device that has signed the challenge."""

    id: Text
    publicKey: Text
    signature: Text
    signedAt: Annotated[int, Field(ge=0, lt=2**53)]
    nonce: Text


class ConnectAuth(Params):
    """What says who connects."""

    token: Annotated[str, Field(max_length=1000)] | None = None
    deviceToken: Annotated[str, Field(max_length=1000)] | None = None
    password: Annotated[str, Field(max_length=1000)] | None = None
    bootstrapToken: Annotated[str, Field(max_length=1000)] | None = None


class ConnectParams(Params):
    """The first request."""

    minProtocol: Annotated[int, Field(ge=1)]
    maxProtocol: Annotated[int, Field(ge=1)]
    client: ClientInfo
    role: Text = "operator"
    scopes: Annotated[list[Text], Field(max_length=50)] = []
    caps: Annotated[list[Text], Field(max_length=200)] = []
    device: DeviceProof | None = None
    auth: ConnectAuth = ConnectAuth()
    locale: str | None = None
    userAgent: str | None = None


def read_request(message: Any, limit: int) -> RequestFrame:
    """What a client sent; raises Malformed, with the id that the frame has if any as `about`."""
    text = message.get("text")
    if text is None:
        raise Unreadable("Send text frames: each is one JSON object.")
    raw = text.encode("utf-8", "surrogatepass")
    if len(raw) > limit:
        raise Unreadable(f"A frame may have {limit} bytes at most.")
    try:
        value = load_json(raw)
    except Malformed as error:
        raise Unreadable(str(error)) from None
    if not isinstance(value, dict):
        raise Unreadable("A frame is a JSON object.")
    try:
        return RequestFrame.model_validate(value)
    except ValidationError as error:
        given = value.get("id")
        about = given if isinstance(given, str) and 0 < len(given) <= 200 else NAMELESS
        raise Unreadable(f"This is no request frame: {first_error(error)}.", about) from None


class Unreadable(Malformed):
    """A frame that is no request."""

    def __init__(self, message: str, about: str = NAMELESS) -> None:
        super().__init__(message)
        self.about = about


def read_params(kind: type[Model], method: str, params: Any) -> Model:
    """The parameters of a method; raises GatewayError."""
    try:
        return kind.model_validate({} if params is None else params)
    except ValidationError as error:
        raise invalid(f"invalid {method} params: {first_error(error)}.") from None


def response(request_id: str, payload: Any) -> Frame:
    """The answer to a request."""
    return {"type": "res", "id": request_id, "ok": True, "payload": payload}


def refusal(request_id: str, error: GoferError) -> Frame:
    """Why a request was not done."""
    return {"type": "res", "id": request_id, "ok": False, "error": error_shape(error)}


def error_shape(error: GoferError) -> Frame:
    """An error of ours as one of the protocol's."""
    if isinstance(error, GatewayError):
        code, details = error.code, error.details
    else:
        code, details = (
            next((code for kind, code in _CODES if isinstance(error, kind)), "INVALID_REQUEST"),
            {},
        )
    shape: Frame = {"code": code, "message": str(error) or "It could not be done."}
    if details:
        shape["details"] = details
    wait = getattr(error, "retry_after", None)
    if wait is not None:
        shape |= {"retryable": True, "retryAfterMs": max(0, int(wait * 1000))}
    elif code == "UNAVAILABLE":
        shape["retryable"] = True
    return shape


_CODES: tuple[tuple[type[GoferError], str], ...] = (
    (Forbidden, "FORBIDDEN"),
    (NotSignedIn, "FORBIDDEN"),
    (TooBusy, "UNAVAILABLE"),
    (TooOften, "UNAVAILABLE"),
    (StoreError, "UNAVAILABLE"),
    (NotFound, "INVALID_REQUEST"),
)


def allowed_scopes(visitor: Visitor) -> frozenset[str]:
    """The scopes of the protocol that somebody may have at most. Nobody gets one that is not listed here."""
    whole = visitor.scopes is None and not visitor.agent
    pairs = (
        (READ, _may(visitor, "messages", "viewer")),
        (WRITE, _may(visitor, "messages", "operator")),
        (APPROVALS, _may(visitor, "questions", "operator") and not visitor.agent),
        (ADMIN, whole and visitor.may("owner")),
        (PAIRING, whole and visitor.may("owner")),
    )
    return frozenset(scope for scope, allowed in pairs if allowed)


def _may(visitor: Visitor, noun: str, role: Any) -> bool:
    try:
        return narrowed(visitor, noun).may(role)
    except Forbidden:
        return False


def granted_scopes(wanted: Iterable[str], allowed: frozenset[str]) -> tuple[str, ...]:
    """What a client gets of the scopes it asks for. Who asks for admin gets whatever of the others they may have."""
    asked = set(wanted)
    if ADMIN in asked:
        asked |= set(SCOPES)
    if WRITE in asked:
        asked.add(READ)
    return tuple(scope for scope in SCOPES if scope in asked and scope in allowed)


def chosen_version(minimum: int, maximum: int) -> int:
    """The newest version that both sides speak; raises GatewayError."""
    both = [version for version in VERSIONS if minimum <= version <= maximum]
    if not both:
        raise invalid(
            f"protocol mismatch: this server speaks {VERSIONS[0]} to {VERSIONS[-1]}",
            "PROTOCOL_MISMATCH",
            expectedProtocol=VERSIONS[-1],
            minimumProbeProtocol=VERSIONS[0],
        )
    return both[-1]
