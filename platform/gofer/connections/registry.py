"""Finds integrations: every package in the entry point group, built-ins included."""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Iterable
from functools import cache
from importlib.metadata import EntryPoint, entry_points

import structlog
from pydantic import BaseModel

from gofer.errors import NotFound
from gofer.integration import Integration, SecretField

log = structlog.get_logger()

GROUP = "gofer.integrations"
OUR_PACKAGE = "gofer"
NAME = re.compile("[a-z][a-z0-9_]*")


class IntegrationRegistry:
    """The integrations that are installed. Each is loaded when somebody first needs it: most are used by nobody."""

    def __init__(self, found: Iterable[EntryPoint]) -> None:
        self._loading = threading.Lock()
        self._announced: dict[str, list[EntryPoint]] = {}
        """Those that are not loaded yet, by name. Of two with one name, the first that can be loaded counts."""
        self._loaded: dict[str, Integration] = {}
        self._broken: dict[str, str] = {}
        self.packages: dict[str, str] = {}
        """Where the broken ones come from, for pip."""
        self.built_in: set[str] = set()
        """Those that came with Gofer, which have a page in its docs."""
        for entry in found:
            self._announced.setdefault(entry.name, []).append(entry)
            if _ours(entry):
                self.built_in.add(entry.name)

    @classmethod
    def installed(cls) -> IntegrationRegistry:
        """Everything installed in this environment."""
        return cls(_announced(tuple(sys.path)))

    @property
    def integrations(self) -> dict[str, Integration]:
        """All that can be loaded, by name."""
        self._load_named(*self._announced)
        return self._loaded

    @property
    def broken(self) -> dict[str, str]:
        """Those that cannot be loaded, and why."""
        self._load_named(*self._announced)
        return self._broken

    def find(self, name: str) -> Integration | None:
        """An integration by name; None when it is not installed or cannot be loaded."""
        self._load_named(name)
        return self._loaded.get(name)

    def get(self, name: str) -> Integration:
        """An integration by name; raises NotFound saying what there is."""
        if (found := self.find(name)) is not None:
            return found
        why = f" It could not be loaded: {self._broken[name]}." if name in self._broken else ""
        raise NotFound(
            f"There is no integration {name!r}.{why} There is: {', '.join(sorted(self.integrations))}. "
            "A package that was installed since Gofer started is found when it starts again."
        )

    def _load_named(self, *names: str) -> None:
        with self._loading:  # the store's thread asks as well
            for name in names:
                for entry in self._announced.pop(name, ()):
                    self._load(entry)

    def _load(self, entry: EntryPoint) -> None:
        # A stranger's package may fail in any way while it is imported; that must cost only itself.
        try:
            integration = entry.load()
            if not isinstance(integration, Integration):
                raise TypeError(f"{entry.value} is not an Integration")
            if integration.name != entry.name:
                raise TypeError(f"it calls itself {integration.name!r} but is announced as {entry.name!r}")
            if entry.name in self._loaded:
                raise TypeError("another package announced the same name first")
            _check(integration)
        except (Exception, SystemExit) as error:  # noqa: BLE001
            self.packages[entry.name] = entry.dist.name if entry.dist else entry.module
            self._broken[entry.name] = f"{type(error).__name__}: {error}"
            log.error("integration.broken", integration=entry.name, error=self._broken[entry.name])
        else:
            self._loaded[entry.name] = integration


def _check(integration: Integration) -> None:
    """Check what everything else relies on, so that a mistake is reported here and not in the middle of a job."""
    if not NAME.fullmatch(integration.name):
        raise TypeError(f"its name {integration.name!r} has more than small letters, digits and underscores")
    if not (isinstance(integration.settings, type) and issubclass(integration.settings, BaseModel)):
        raise TypeError("its settings are not a pydantic model")
    if not all(isinstance(each, SecretField) for each in integration.secrets):
        raise TypeError("its secrets are not all a SecretField")


@cache
def _announced(_: tuple[str, ...]) -> tuple[EntryPoint, ...]:
    """The entry points of the packages on this path. Read once: every installed package is looked at."""
    # Gofer's own first: no package that is added takes the place of one of them, with its connections' secrets.
    return tuple(sorted(entry_points(group=GROUP), key=lambda each: not _ours(each)))


def _ours(entry: EntryPoint) -> bool:
    return entry.dist is not None and entry.dist.name == OUR_PACKAGE
