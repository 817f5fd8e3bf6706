"""Names of the contract before 0.2. They work for one more release, and warn."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T", bound=type)

NAMES = {"Account": "ConnectionContext", "Job": "JobScope", "Equipment": "ShellAccess"}
METHODS = {
    "notice": "acknowledge",
    "settle": "answer_callback",
    "move": "rename_conversation",
    "allow": "allow_conversation",
    "errands": "delegated_tools",
    "equip": "shell_access",
    "signed_up": "finish_setup",
    "tells_work": "shows_run_summary",
}


def adopt_old_methods(integration: type) -> None:
    """Give what an integration defines under an old name its new name."""
    for old, new in METHODS.items():
        if old in vars(integration) and new not in vars(integration):
            _warn(f"{integration.__name__}.{old}", new)
            setattr(integration, new, vars(integration)[old])
    if "sign_up" in vars(integration) and not getattr(integration, "can_sign_up", False):
        # Until 0.2 overriding `sign_up` was enough.
        message = f"{integration.__name__}.sign_up needs can_sign_up = True from the next release on."
        warnings.warn(message, DeprecationWarning, stacklevel=3)
        setattr(integration, "can_sign_up", True)  # noqa: B010 - mypy refuses the plain assignment


def old_fields(**renamed: str) -> Callable[[T], T]:
    """Let a dataclass be created and read by the old names of its fields."""

    def decorate(cls: T) -> T:
        make: Any = vars(cls)["__init__"]
        old_names = frozenset(renamed)

        @functools.wraps(make)
        def init(self: Any, *values: Any, **named: Any) -> None:
            if not old_names.isdisjoint(named):
                for old in old_names & named.keys():
                    _warn(f"{cls.__name__}({old}=)", renamed[old])
                    named[renamed[old]] = named.pop(old)
            make(self, *values, **named)

        setattr(cls, "__init__", init)  # noqa: B010 - mypy refuses the plain assignment
        for old, new in renamed.items():
            setattr(cls, old, property(functools.partial(_read, cls.__name__, old, new)))
        return cls

    return decorate


def _read(cls: str, old: str, new: str, value: Any) -> Any:
    _warn(f"{cls}.{old}", new)
    return getattr(value, new)


def warn_of_name(old: str) -> str:
    """Warn of an old name of `gofer.integration`, and return the new one."""
    _warn(f"gofer.integration.{old}", NAMES[old])
    return NAMES[old]


def _warn(old: str, new: str) -> None:
    message = f"{old} is called {new} now. The old name goes with the next release."
    warnings.warn(message, DeprecationWarning, stacklevel=4)
