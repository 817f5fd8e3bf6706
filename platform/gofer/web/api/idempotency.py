"""Idempotency-Key: a request that is repeated is answered again, not done again. Durable, for a day."""

from __future__ import annotations

import json
import re
from collections.abc import Awaitable, Callable
from typing import Any

from sqlalchemy import Connection, delete, select, update
from starlette.requests import Request
from starlette.responses import Response

from gofer.errors import Conflict, GoferError, Malformed
from gofer.store.db_time import now
from gofer.store.fast_sql import upsert
from gofer.store.tables import idempotency_keys
from gofer.web.api.http import platform_of, read_raw_body
from gofer.web.auth import note, visitor_of

ANSWER_TTL = 86400.0
KEY = re.compile(r"[\x21-\x7e]{1,200}")
HEADER = "idempotency-key"


class Reused(GoferError):
    """The Idempotency-Key was used for another request before. Use a fresh one."""

    code = "idempotency.reused"
    status = 422


class Unfinished(Conflict):
    """A request with this Idempotency-Key is being done, or was cut off. Look whether it was done, then use another."""

    code = "idempotency.unfinished"


class SecretShownOnce(Conflict):
    """This was done already; its answer held a secret, which is shown once."""

    code = "idempotency.told"


async def once(request: Request, do: Callable[[Request], Awaitable[Response]], *, secret: bool) -> Response:
    """Do what is asked unless a request with the same key was done before: then answer like then."""
    key = request.headers.get(HEADER)
    if key is None:
        return await do(request)
    if not KEY.fullmatch(key):
        raise Malformed("Idempotency-Key: must have 1 to 200 visible ASCII characters.")
    here: dict[str, Any] = {"member_id": visitor_of(request).member_id, "key": key}
    database = platform_of(request).database
    mark = _fingerprint(request, await read_raw_body(request))
    before = await database.write(_begin, mark=mark, **here)
    if before is not None:
        return _again(request, before, mark)
    try:
        response = await do(request)
    except GoferError:
        # Refused on purpose: nothing was changed, so the same key may be tried again.
        await database.write(_forget, **here)
        raise
    if response.status_code < 400:
        answer = "" if secret else json.dumps(_stored_answer(response))
        await database.write(_end, status=response.status_code, answer=answer, **here)
    else:
        await database.write(_forget, **here)
    return response


def _fingerprint(request: Request, body: bytes) -> str:
    asked = f"{request.method} {request.url.path}?{request.url.query}\n".encode("utf-8", "surrogatepass")
    if agent := visitor_of(request).agent:
        asked += f"agent:{agent}\n".encode("utf-8", "surrogatepass")
    return platform_of(request).vault.mac_key("request").digest(asked, body)


def _again(request: Request, before: Any, mark: str) -> Response:
    if before.fingerprint != mark:
        raise Reused
    if not before.status:
        raise Unfinished
    if not before.answer:
        raise SecretShownOnce
    note(request, repeated=True)
    kept = json.loads(before.answer)
    headers = {**kept["headers"], "idempotency-replayed": "true"}
    return Response(kept["body"], before.status, headers, media_type="application/json")


def _stored_answer(response: Response) -> dict[str, Any]:
    headers = {name: response.headers[name] for name in ("location", "etag") if name in response.headers}
    return {"headers": headers, "body": bytes(response.body).decode()}


def _at(member_id: str, key: str) -> Any:
    return (idempotency_keys.c.member_id == member_id) & (idempotency_keys.c.key == key)


def _begin(connection: Connection, member_id: str, key: str, mark: str) -> Any:
    """Take the key; or, when it is taken, what became of the request that took it."""
    connection.execute(delete(idempotency_keys).where(idempotency_keys.c.created_at < now() - ANSWER_TTL))
    taken = connection.execute(
        upsert(connection.dialect.name, idempotency_keys)
        .values(member_id=member_id, key=key, fingerprint=mark, status=0, answer="", created_at=now())
        .on_conflict_do_nothing(index_elements=["member_id", "key"])
    )
    if taken.rowcount == 1:
        return None
    return connection.execute(select(idempotency_keys).where(_at(member_id, key))).one()


def _end(connection: Connection, member_id: str, key: str, status: int, answer: str) -> None:
    connection.execute(
        update(idempotency_keys).where(_at(member_id, key)).values(status=status, answer=answer)
    )


def _forget(connection: Connection, member_id: str, key: str) -> None:
    connection.execute(delete(idempotency_keys).where(_at(member_id, key)))
