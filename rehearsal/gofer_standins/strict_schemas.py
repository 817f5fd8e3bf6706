"""What Anthropic and OpenAI refuse in the schema of a strict tool."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

TAKEN = {
    "type", "properties", "required", "additionalProperties", "items", "anyOf", "$ref", "$defs", "enum", "const",
    "description",
}  # fmt: skip


def strict_problems(schema: Mapping[str, Any], place: str = "schema") -> Iterator[str]:
    """Everything that either of them would refuse."""
    kind = schema.get("type", "value")
    for key in sorted(set(schema) - TAKEN):
        yield f"{place}: For '{kind}' type, property '{key}' is not supported"
    if "$ref" in schema and set(schema) - {"$ref", "$defs"}:
        yield f"{place}: $ref cannot have other keys"
    fields = schema.get("properties", {})
    if kind == "object" and schema.get("additionalProperties") is not False:
        yield f"{place}: For 'object' type, 'additionalProperties' must be explicitly set to false"
    if set(schema.get("required", ())) != set(fields):
        yield f"{place}: 'required' is required to be an array including every key in properties"
    inner = {**fields, **schema.get("$defs", {}), **dict(enumerate(schema.get("anyOf", ())))}
    if "items" in schema:
        inner["items"] = schema["items"]
    for name, one in inner.items():
        yield from strict_problems(one, f"{place}.{name}")
