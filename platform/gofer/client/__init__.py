"""A small typed client for Gofer's API.

    from gofer.client import Gofer

    with Gofer("http://127.0.0.1:8765", token="gofer_…") as gofer:
        print(gofer.ask("What is in this repository?"))

Every answer is a model of `gofer.client.models`; every error is a `GoferProblem` with the status, the code and the
words of the server. Changes carry an Idempotency-Key, so a lost answer is asked for again without doing it twice.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from gofer.client.http import Gofer, GoferProblem, Unreachable
    from gofer.client.models import Event, Job, Message, Said

__all__ = ["Event", "Gofer", "GoferProblem", "Job", "Message", "Said", "Unreachable"]


def __getattr__(name: str) -> Any:
    """Load what is asked for: the server uses other modules of this package, and none of the client."""
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module = "http" if name in ("Gofer", "GoferProblem", "Unreachable") else "models"
    return getattr(import_module(f"{__name__}.{module}"), name)
