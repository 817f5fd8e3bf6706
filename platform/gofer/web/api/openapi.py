"""The OpenAPI 3.1 document, made from the table and its models, and a page for people that shows the same."""

from __future__ import annotations

import functools
import re
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema
from starlette.requests import Request
from starlette.responses import HTMLResponse, JSONResponse, Response
from starlette.routing import Route

from gofer import __version__
from gofer.client import models
from gofer.web.api.http import MAX_ID
from gofer.web.api.operations import Operation
from gofer.web.auth.guard import CSRF_HEADER, PLAIN_COOKIE
from gofer.web.auth.principal import AS_ROLE
from gofer.web.dashboard.render import theme_of
from gofer.web.problems import TITLES

REF = "#/components/schemas/{model}"
PARAMETER = re.compile(r"\{(\w+)(?::(\w+))?\}")
SCOPE_OF = {role: scope for scope, role in AS_ROLE.items()}
ABOUT = (
    "Everything the dashboard does. Send a token (`Authorization: Bearer gofer_…`), or, from a page of the dashboard, "
    f"the session's cookie and, for changes, `{CSRF_HEADER}`. Errors are problem+json. Long lists are paged: pass "
    "`next` of one page as `cursor` for the following one. A POST with an `Idempotency-Key` may be repeated for a day."
)

Schema = dict[str, Any]


def document_routes() -> list[Route]:
    """The document and its page; anybody may read them."""
    return [Route("/openapi.json", _document), Route("/docs", _page)]


async def _document(request: Request) -> Response:
    """The OpenAPI document."""
    return JSONResponse(document())


async def _page(request: Request) -> Response:
    """The same for people."""
    page = request.app.state.renderer.html(
        "api.html", theme=theme_of(request), document=document(), groups=_groups()
    )
    return HTMLResponse(page)


@functools.cache
def document() -> Schema:
    """The whole document."""
    schemas = _schemas()
    paths: dict[str, dict[str, Schema]] = {}
    for operation in _operations():
        path = PARAMETER.sub(r"{\1}", operation.path)
        paths.setdefault(path, {})[operation.method.lower()] = _described(operation, schemas)
    return {
        "openapi": "3.1.0",
        "info": {"title": "Gofer", "version": __version__, "description": ABOUT},
        "servers": [{"url": "/api/v1"}],
        "security": [{"token": []}, {"session": []}],
        "paths": paths,
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "session": {"type": "apiKey", "in": "cookie", "name": PLAIN_COOKIE},
            },
        },
    }


def _operations() -> tuple[Operation, ...]:
    # The table imports the endpoints; this module is one of theirs.
    from gofer.web.api.table import OPERATIONS

    return OPERATIONS


def _groups() -> dict[str, list[Schema]]:
    """The operations by their noun, with what the page shows of each."""
    groups: dict[str, list[Schema]] = {}
    for operation in _operations():
        path = PARAMETER.sub(r"{\1}", operation.path)
        described = document()["paths"][path][operation.method.lower()]
        body = described.get("requestBody", {}).get("content", {}).get("application/json", {}).get("schema")
        shown = {"method": operation.method, "path": path, "about": described, "body": body, "op": operation}
        groups.setdefault(operation.name.partition(".")[0], []).append(shown)
    return groups


def _schemas() -> dict[str, Schema]:
    """Every model by its name; those of requests are named after their operation."""
    answers = {operation.answer for operation in _operations()} | {models.Problem}
    ordered: list[type[BaseModel]] = sorted(answers, key=lambda model: model.__name__)
    _, found = models_json_schema([(model, "serialization") for model in ordered], ref_template=REF)
    schemas: dict[str, Schema] = dict(found["$defs"])
    for operation in _operations():
        if operation.body is not None:
            schema = operation.body.model_json_schema(ref_template=REF)
            schemas.update(schema.pop("$defs", {}))
            schemas[_body_name(operation)] = {**schema, "title": _body_name(operation)}
    return schemas


def _body_name(operation: Operation) -> str:
    words = re.split(r"[._]", operation.name)
    return "".join(word.capitalize() for word in words) + "Request"


def _described(operation: Operation, schemas: dict[str, Schema]) -> Schema:
    text = (operation.endpoint.__doc__ or "").strip()
    summary, _, more = text.partition("\n")
    role = f"Needs the role {operation.role} (scope {SCOPE_OF[operation.role]})."
    described: Schema = {
        "operationId": operation.name,
        "summary": summary.rstrip("."),
        "description": f"{' '.join(more.split())} {role}".strip(),
        "tags": [operation.name.partition(".")[0]],
        "parameters": [*_path_parameters(operation), *_query_parameters(operation), *_headers(operation)],
        "responses": _responses(operation),
    }
    if operation.body is not None:
        content = {"application/json": {"schema": {"$ref": REF.format(model=_body_name(operation))}}}
        required = bool(schemas[_body_name(operation)].get("required"))
        described["requestBody"] = {"required": required, "content": content}
    return described


def _path_parameters(operation: Operation) -> list[Schema]:
    found = []
    for name, kind in PARAMETER.findall(operation.path):
        schema: Schema = {"type": "string", "minLength": 1, "maxLength": 200}
        if kind == "int":
            schema = {"type": "integer", "minimum": 0, "maximum": MAX_ID}
        found.append({"name": name, "in": "path", "required": True, "schema": schema})
    return found


def _query_parameters(operation: Operation) -> list[Schema]:
    if operation.query is None:
        return []
    schema = operation.query.model_json_schema(ref_template=REF)
    required = schema.get("required", ())
    return [
        {"name": name, "in": "query", "required": name in required, "schema": _plain(field)}
        | ({"description": field["description"]} if "description" in field else {})
        for name, field in schema["properties"].items()
    ]


def _plain(field: Schema) -> Schema:
    """A query has no null: a parameter is left out instead."""
    if "anyOf" in field:
        (kept,) = [each for each in field["anyOf"] if each.get("type") != "null"]
        return dict(kept)
    return {name: value for name, value in field.items() if name not in ("title", "description")}


def _headers(operation: Operation) -> list[Schema]:
    found = []
    if operation.method == "POST":
        key = {"type": "string", "pattern": r"^[\x21-\x7e]{1,200}$"}
        found.append({"name": "Idempotency-Key", "in": "header", "required": False, "schema": key})
    if operation.versioned and operation.method in ("PUT", "PATCH", "DELETE"):
        found.append({"name": "If-Match", "in": "header", "required": False, "schema": {"type": "string"}})
    if operation.stream:
        place = {"type": "string", "pattern": r"^[0-9]{1,18}\.[0-9]{1,18}$"}
        found.append({"name": "Last-Event-ID", "in": "header", "required": False, "schema": place})
    return found


def _responses(operation: Operation) -> dict[str, Schema]:
    schema = {"$ref": REF.format(model=operation.answer.__name__)}
    # In a stream the schema is that of each event's data, which OpenAPI 3.1 has no words for.
    content = {"text/event-stream": {}} if operation.stream else {"application/json": {"schema": schema}}
    headers: Schema = {}
    if operation.versioned and operation.method != "DELETE":
        headers["ETag"] = {"schema": {"type": "string"}}
    if operation.status in (201, 202) and not operation.secret:
        headers["Location"] = {"schema": {"type": "string"}}
    answer: Schema = {"description": (operation.answer.__doc__ or "").strip(), "content": content}
    if headers:
        answer["headers"] = headers
    problem = {"application/problem+json": {"schema": {"$ref": REF.format(model="Problem")}}}
    refused = {
        str(status): {"description": TITLES[status], "content": problem} for status in _failures(operation)
    }
    return {str(operation.status): answer, **refused}


def _failures(operation: Operation) -> list[int]:
    failures = {400, 401, 403, 503, *operation.fails}
    if "{" in operation.path:
        failures.add(404)
    if operation.method != "GET":
        failures |= {408, 409, 413, 415, 422}
    if operation.versioned and operation.method in ("PUT", "PATCH", "DELETE"):
        failures.add(412)
    return sorted(failures)
