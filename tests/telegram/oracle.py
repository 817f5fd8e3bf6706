"""aiogram's types as the judge, run in an environment of its own: it wants an older pydantic than ours.

Reads lines of JSON `{"what", "name", "value"}` and prints what is wrong with each, one line per finding. Is told where
aiogram is.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import sys
from functools import cache
from types import ModuleType
from typing import Any

sys.path.insert(0, sys.argv[1])

from pydantic import BaseModel, TypeAdapter

names: dict[str, Any] = {}
"""What aiogram's annotations refer to."""


def modules() -> tuple[ModuleType, ModuleType]:
    """aiogram's types and methods alone, each built when it is asked for: all 700 of them take seven seconds."""
    found = importlib.util.find_spec("aiogram")
    assert found is not None
    package = ModuleType("aiogram")
    package.__path__ = list(found.submodule_search_locations or ())
    sys.modules["aiogram"] = package
    rebuild = BaseModel.__dict__["model_rebuild"]
    BaseModel.model_config["defer_build"] = True
    BaseModel.model_rebuild = classmethod(  # type: ignore[method-assign,assignment]
        lambda cls, **given: names.update(given["_types_namespace"])
    )
    try:
        return importlib.import_module("aiogram.types"), importlib.import_module("aiogram.methods")
    finally:
        BaseModel.model_rebuild = rebuild  # type: ignore[method-assign]


def built(model: Any) -> Any:
    if not model.__pydantic_complete__:
        model.model_rebuild(_types_namespace=names)
    return model


@cache
def answer_type(method: Any) -> TypeAdapter[Any]:
    adapter = TypeAdapter(method.__returning__)
    adapter.rebuild(_types_namespace=names)
    return adapter


def extras(model: Any, path: str) -> list[str]:
    """Fields that the Bot API does not have."""
    found = [f"{path}.{name}" for name in (model.model_extra or {})]
    for name in type(model).model_fields:
        value = getattr(model, name)
        for item in value if isinstance(value, list) else [value]:
            if hasattr(item, "model_extra"):
                found += extras(item, f"{path}.{name}")
    return found


def main() -> None:
    types, methods = modules()
    for line in sys.stdin:
        asked = json.loads(line)
        kind = asked["name"][0].upper() + asked["name"][1:]
        try:
            if asked["what"] == "type":
                model = built(getattr(types, kind)).model_validate(asked["value"])
            elif asked["what"] == "request":
                model = built(getattr(methods, kind)).model_validate(asked["value"])
            else:
                answer_type(getattr(methods, kind)).validate_python(asked["value"])
                continue
            problems = extras(model, kind)
        except Exception as error:
            problems = [f"{type(error).__name__}: {error}"]
        for problem in problems:
            print(json.dumps([asked["what"], asked["name"], problem[:600]]))


if __name__ == "__main__":
    main()
