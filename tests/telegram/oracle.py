"""aiogram's types as the judge, run in an environment of its own: it wants an older pydantic than ours.

Reads lines of JSON `{"what", "name", "value"}` and prints what is wrong with each, one line per finding.
"""

from __future__ import annotations

import importlib
import json
import sys
from typing import Any

from pydantic import TypeAdapter


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
    methods, types = importlib.import_module("aiogram.methods"), importlib.import_module("aiogram.types")

    for line in sys.stdin:
        asked = json.loads(line)
        kind = asked["name"][0].upper() + asked["name"][1:]
        try:
            if asked["what"] == "type":
                model = getattr(types, kind).model_validate(asked["value"])
            elif asked["what"] == "request":
                model = getattr(methods, kind).model_validate(asked["value"])
            else:
                TypeAdapter(getattr(methods, kind).__returning__).validate_python(asked["value"])
                continue
            problems = extras(model, kind)
        except Exception as error:
            problems = [str(error)]
        for problem in problems:
            print(json.dumps([asked["what"], asked["name"], problem[:600]]))


if __name__ == "__main__":
    main()
