"""What the API's endpoints share: request models, response helpers and cursors."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from gofer.errors import Malformed, NotFound, Stale
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.strict_json import load_json
from gofer.validation import first_error
from gofer.web.body import BodyError, read_body
from gofer.web.queries import platform_of as platform_of

WORKSPACE = FIRST_WORKSPACE

MAX_ROWS = 1000
MAX_BODY = 1024 * 1024
MAX_ID = 2**63 - 1

Q = TypeVar("Q", bound="RequestModel")
Id = Annotated[str, Field(max_length=200)]


def _whole(value: Any) -> Any:
    """5.0 is a whole number to JSON Schema, and so to the document we serve."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
Number = Annotated[int, Field(ge=0, le=MAX_ID), WHOLE]


class RequestModel(BaseModel):
    """A request's body or query; unknown fields are refused."""

    model_config = ConfigDict(extra="forbid", hide_input_in_errors=True)


class EmptyBody(RequestModel):
    """No body, or an empty object."""


class Paged(RequestModel):
    """A list that may be long, newest first."""

    cursor: str = Field(default="", pattern=r"^([0-9]{1,18})?$", description="`next` of the page before.")
    limit: int = Field(default=50, ge=1, le=MAX_ROWS)

    @property
    def before(self) -> int | None:
        """The id of the last row of the page before."""
        return int(self.cursor) if self.cursor else None


async def read_raw_body(request: Request) -> bytes:
    """The raw body, read once, bounded in size and time."""
    if "gofer.body" not in request.scope:
        within = platform_of(request).settings.body_timeout
        most: int = request.scope.get("gofer.most_body", MAX_BODY)
        request.scope["gofer.body"] = await read_body(request, at_most=most, within=within)
    return bytes(request.scope["gofer.body"])


async def parse_body(request: Request, kind: type[Q]) -> Q:
    """The JSON body as a model; raises Malformed."""
    body = await read_raw_body(request)
    media = request.headers.get("content-type", "application/json").partition(";")[0].strip().lower()
    if body and media != "application/json":
        raise BodyError(415, "Send the body as application/json.")
    load_json(body or b"{}")  # refuses what is JSON only to the lenient
    # Strict: true is no number, and "5" is none either.
    return _validate(lambda: kind.model_validate_json(body or b"{}", strict=True))


def parse_query(request: Request, kind: type[Q]) -> Q:
    """The query string as a model; raises Malformed."""
    return _validate(lambda: kind.model_validate(dict(request.query_params)))


def _validate(read: Callable[[], Q]) -> Q:
    try:
        return read()
    except ValidationError as error:
        raise Malformed(f"{first_error(error)}.") from None


def path_number(request: Request, name: str = "id") -> int:
    """An id in the path. Path ids beyond 64 bits are 404."""
    number: int = request.path_params[name]
    if number > MAX_ID:
        raise NotFound(f"There is no number {str(number)[:40]}….")
    return number


@dataclass(frozen=True, slots=True)
class ApiAnswer:
    """An answer that also says where the thing is, or which version of it this is."""

    value: dict[str, Any]
    location: str = ""
    etag: str = ""
    masked: bool = True
    """Off where the answer is a secret of the caller who has just made it."""


def json_response(request: Request, told: dict[str, Any] | ApiAnswer, status: int) -> Response:
    """JSON, with every known secret masked unless the answer says otherwise."""
    answer = told if isinstance(told, ApiAnswer) else ApiAnswer(told)
    headers = {"location": f"/api/v1{answer.location}"} if answer.location else {}
    if answer.etag:
        headers["etag"] = answer.etag
    redact = platform_of(request).redactor.redact_value
    return JSONResponse(redact(answer.value) if answer.masked else answer.value, status, headers)


def etag_of(*parts: Any) -> str:
    """An ETag that changes with its parts."""
    plain = json.dumps(parts, sort_keys=True, default=str).encode("utf-8", "surrogatepass")
    return f'"{hashlib.sha256(plain).hexdigest()[:32]}"'


def check_match(request: Request, etag: str) -> None:
    """Raises Stale when `If-Match` names another version than the stored one."""
    given = request.headers.get("if-match", "*")
    marks = {mark.strip() for mark in given.split(",")}
    if "*" not in marks and etag not in marks:
        raise Stale


def next_cursor(found: list[dict[str, Any]], limit: int, name: str = "id") -> str | None:
    """The cursor of the next page; None when this one is not full."""
    return str(found[-1][name]) if len(found) == limit else None
