"""Sets an account up at a service in one click: a browser posts a form there and comes back with a code.

Nothing is kept in between. What was begun is sealed into the `state` that the service hands back: nobody else can
make one, it works for an hour, and for one connection.
"""

from __future__ import annotations

import base64
import binascii
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection, select

from gofer.connections.changes import add_connection, checked_settings
from gofer.errors import ConfigError, Conflict, Refused
from gofer.integration import SignUp
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.ids import new_id
from gofer.store.tables import connections
from gofer.vault.envelope import aad
from gofer.vault.errors import VaultError
from gofer.vault.redaction import Secret

if TYPE_CHECKING:
    from gofer.app import Platform

SETUP_TIMEOUT = 3600.0
"""Seconds; GitHub's codes live as long."""
_PLACE = aad("sign-up")


@dataclass(frozen=True, slots=True)
class Begun:
    """A setup that has begun."""

    connection_id: str
    """Which the connection will have: the service must know where to send webhooks."""
    state: str
    form: SignUp


def begin_setup(
    platform: Platform,
    *,
    integration: str,
    name: str,
    settings: Mapping[str, Any],
    owner: str,
    back_url: str,
) -> Begun:
    """The form to post. The caller keeps the state, and refuses an answer that comes with another one."""
    found = platform.registry.get(integration)
    if not found.can_sign_up:
        raise _none_at(integration)
    checked = checked_settings(found, settings)
    connection_id = new_id(found.name.replace("_", ""))
    public = platform.settings.public_url.rstrip("/")
    known = {"integration": integration, "name": name, "settings": checked, "id": connection_id}
    sealed = platform.vault.wrap(json.dumps({**known, "until": time.time() + SETUP_TIMEOUT}).encode(), _PLACE)
    state = base64.urlsafe_b64encode(sealed).decode()
    hook_url = f"{public}/hooks/{connection_id}" if public else None
    form = found.sign_up(
        checked, name=name, owner=owner, hook_url=hook_url, back_url=back_url, homepage=public, state=state
    )
    if form is None:
        raise _none_at(integration)
    return Begun(connection_id, state, form)


def _none_at(integration: str) -> ConfigError:
    return ConfigError(f"{integration} has no sign-up. Use `gofer connections add {integration}`.")


async def finish_setup(platform: Platform, *, state: str, code: str, by: str) -> str:
    """Exchange the code for the account and store its secrets sealed. Returns the connection's id."""
    known = _opened(platform, state)
    if await platform.database.read(_exists, connection_id=known["id"]):
        raise Conflict(f"This sign-up was finished before: it made {known['id']}.")
    integration = platform.registry.get(known["integration"])
    learned, secrets = await integration.finish_setup(known["settings"], code)
    return await platform.database.write(
        add_connection,
        vault=platform.vault,
        workspace_id=FIRST_WORKSPACE,
        integration=integration,
        name=known["name"],
        settings={**known["settings"], **learned},
        secrets_given={name: Secret(value) for name, value in secrets.items()},
        by=by,
        connection_id=known["id"],
    )


def _opened(platform: Platform, state: str) -> dict[str, Any]:
    try:
        sealed = base64.urlsafe_b64decode(state.encode("ascii", "strict"))
        known: dict[str, Any] = json.loads(platform.vault.open(sealed, _PLACE))
    except (VaultError, binascii.Error, ValueError):
        raise Refused("The state is not one of ours. Begin the sign-up again.") from None
    if known["until"] < time.time():
        raise Refused("The sign-up took longer than an hour. Begin it again.")
    return known


def _exists(connection: Connection, connection_id: str) -> bool:
    found = select(connections.c.id).where(connections.c.id == connection_id)
    return connection.execute(found).first() is not None
