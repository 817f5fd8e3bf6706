"""GitHub's own OpenAPI over what goes between Gofer and the stand-in.

As a pytest plugin (`-p support.github_openapi`) it writes every exchange with the stand-in's API into the folder
`GITHUB_EXCHANGES`.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from gofer_standins import github
from gofer_standins.loopback import serve

Schema = dict[str, Any]
_TYPES: dict[str, type | tuple[type, ...]] = {
    "string": str, "integer": int, "number": (int, float), "boolean": bool, "array": list, "object": dict,
}  # fmt: skip


def pytest_configure() -> None:
    kept = Path(os.environ["GITHUB_EXCHANGES"]) / f"{os.getpid()}.jsonl"
    github.serve = lambda app: serve(_recorded(app, kept))  # type: ignore[attr-defined]


def _recorded(app: ASGIApp, kept: Path) -> ASGIApp:
    async def serving(scope: Scope, receive: Receive, send: Send) -> None:
        asked, answered, status = bytearray(), bytearray(), 0

        async def heard() -> Message:
            message = await receive()
            asked.extend(message.get("body", b""))
            return message

        async def told(message: Message) -> None:
            nonlocal status
            status = message.get("status", status)
            answered.extend(message.get("body", b""))
            await send(message)

        await app(scope, heard, told)
        headers = {name.decode(): value.decode("latin-1") for name, value in scope["headers"]}
        if headers.get("x-github-api-version") or scope["path"].startswith("/api/v3"):
            whole = Exchange(
                scope["method"], scope["raw_path"].decode(), scope["query_string"].decode(),
                asked.decode("utf-8", "replace"), status, answered.decode("utf-8", "replace"),
            )  # fmt: skip
            with kept.open("a") as file:
                file.write(json.dumps(whole.__dict__) + "\n")

    return serving


@dataclass(frozen=True)
class Exchange:
    """A request and its answer."""

    method: str
    path: str
    query: str
    asked: str
    status: int
    answered: str


def read(folder: Path) -> Iterator[Exchange]:
    """Each sort of exchange once."""
    seen = set()
    for file in sorted(folder.glob("*.jsonl")):
        for line in file.read_text().splitlines():
            if line not in seen:
                seen.add(line)
                yield Exchange(**json.loads(line))


class OpenAPI:
    """The description, and what in an exchange does not agree with it."""

    def __init__(self, whole: Schema) -> None:
        self._whole = whole

    @cached_property
    def _paths(self) -> list[tuple[re.Pattern[str], str]]:
        """The most literal first."""
        found = []
        for path in sorted(self._whole["paths"], key=lambda one: (one.count("{"), one)):
            # The last part of these may have slashes in it.
            several = path.endswith(("contents/{path}", "compare/{basehead}", "branches/{branch}"))
            pattern = re.sub(r"\{\w+\}$", "(.+)" if several else "([^/]+)", path)
            found.append((re.compile(re.sub(r"\{\w+\}", "([^/]+)", pattern)), path))
        return found

    def operation(self, exchange: Exchange) -> tuple[str, Schema] | None:
        """The template of its path, and what is said of its method there."""
        path = exchange.path.removeprefix("/api/v3")
        path = re.sub(r"^/repositories/\d+", "/repos/owner/name", path)
        for pattern, template in self._paths:
            if pattern.fullmatch(path) and exchange.method.lower() in self._whole["paths"][template]:
                return template, self._whole["paths"][template][exchange.method.lower()]
        return None

    def wrong_request(self, exchange: Exchange, operation: Schema) -> list[str]:
        """What GitHub does not say that one may send."""
        known = {}
        for one in operation.get("parameters", []):
            parameter = self._resolved(one)
            if parameter["in"] == "query":
                known[parameter["name"]] = parameter["schema"]
        found = []
        for name, value in parse_qsl(exchange.query, keep_blank_values=True):
            if name not in known:
                found.append(f"query {name} is unknown")
            else:
                found += self._misfits(_number_or_text(unquote(value)), known[name], f"query {name}", True)
        described = (
            self._resolved(operation.get("requestBody", {})).get("content", {}).get("application/json")
        )
        if not exchange.asked:  # or the stand-in refused it before it read a body
            required = self._resolved(operation.get("requestBody", {})).get("required")
            return [*found, "a body is required"] if required and exchange.status < 300 else found
        if described is None:
            return [*found, "no body is described"] if exchange.asked not in ("", "{}") else found
        return found + self._misfits(json.loads(exchange.asked), described["schema"], "body", True)

    def wrong_answer(self, exchange: Exchange, operation: Schema) -> list[str]:
        """What GitHub would not say. It says more than the stand-in, so nothing is missed."""
        if exchange.status >= 300:
            return []
        described = operation["responses"].get(str(exchange.status))
        if described is None:
            return [f"status {exchange.status} is not described"]
        content = self._resolved(described).get("content", {})
        json_ = next((content[name] for name in content if "json" in name), None)
        if json_ is None or not exchange.answered:
            return [] if not exchange.answered or content else ["no content is described"]
        try:
            value = json.loads(exchange.answered)
        except ValueError:
            return []  # another media type was asked for
        return self._misfits(value, json_["schema"], "answer", False)

    def _resolved(self, schema: Schema) -> Schema:
        while "$ref" in schema:
            found: Any = self._whole
            for part in schema["$ref"].removeprefix("#/").split("/"):
                found = found[part.replace("~1", "/").replace("~0", "~")]
            schema = found
        if "allOf" not in schema:
            return schema
        merged: Schema = {name: value for name, value in schema.items() if name != "allOf"}
        for one in map(self._resolved, schema["allOf"]):
            merged |= one | {
                "properties": merged.get("properties", {}) | one.get("properties", {}),
                "required": [*merged.get("required", []), *one.get("required", [])],
            }
        return merged

    def _misfits(self, value: Any, given: Schema, where: str, whole: bool) -> list[str]:
        """What of a value a schema has no place for, and with `whole` also what is required and missing."""
        schema = self._resolved(given)
        if value is None and (schema.get("nullable") or given.get("nullable")):
            return []
        either = schema.get("oneOf") or schema.get("anyOf")
        if either and not (schema.get("properties") and schema.get("type") == "object"):
            tried = [self._misfits(value, one, where, whole) for one in either]
            return min(tried, key=len)
        wanted = schema.get("type")
        if wanted and not _is(value, wanted):
            return [f"{where}: {json.dumps(value)[:60]} is no {wanted}"]
        if "enum" in schema and value not in schema["enum"]:
            return [f"{where}: {value!r} is none of {schema['enum']}"]
        if isinstance(value, list):
            found = [
                m for one in value for m in self._misfits(one, schema.get("items", {}), f"{where}[]", whole)
            ]
            if len(value) < schema.get("minItems", 0):
                found.append(f"{where}: {len(value)} items are too few")
            return found
        return self._of_object(value, schema, where, whole) if isinstance(value, dict) else []

    def _of_object(self, value: dict[str, Any], schema: Schema, where: str, whole: bool) -> list[str]:
        properties, others = schema.get("properties", {}), schema.get("additionalProperties")
        found = []
        if whole:
            found = [f"{where}.{name} is missing" for name in schema.get("required", []) if name not in value]
        for name, one in value.items():
            if name in properties:
                found += self._misfits(one, properties[name], f"{where}.{name}", whole)
            elif isinstance(others, dict):
                found += self._misfits(one, others, f"{where}.{name}", whole)
            elif properties and others is not True:
                found.append(f"{where}.{name} is unknown")
        return found


def _is(value: Any, wanted: str) -> bool:
    if isinstance(value, bool) and wanted != "boolean":
        return False
    return isinstance(value, _TYPES[wanted])


def _number_or_text(value: str) -> Any:
    """What a query's words stand for."""
    return int(value) if value.isdigit() else {"true": True, "false": False}.get(value, value)
