"""How far a new installation is: honest, and without asking anybody outside."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import Connection, func, select

from gofer.doctor.model import look_at_model
from gofer.platform import Platform
from gofer.store.open import FIRST_WORKSPACE
from gofer.store.tables import bindings, connections, conversations, deliveries, secrets

OFFERED = ("telegram", "github")
MODEL_KEYS = ("anthropic_key", "openai_key")


async def state_of(platform: Platform, member_id: str) -> dict[str, Any]:
    """What the page shows of each step."""
    known = await platform.database.read(partial(_known, member_id=member_id))
    (model,) = await look_at_model(platform)
    settings = platform.settings
    given = {"anthropic_key": settings.anthropic_key, "openai_key": settings.openai_key}
    return {
        **known,
        "model": {
            "line": model.line,
            "real": model.severity == "ok",
            "by_environment": [name for name in MODEL_KEYS if given[name] and name not in known["keys"]],
        },
        "compatible": "openai_key" in known["keys"] or bool(settings.openai_key or settings.openai_base_url),
        "public_url": settings.public_url,
    }


def _known(connection: Connection, member_id: str) -> dict[str, Any]:
    names = select(secrets.c.name).where(
        secrets.c.workspace_id == FIRST_WORKSPACE, secrets.c.owner == "", secrets.c.name.in_(MODEL_KEYS)
    )
    talked = (
        select(conversations.c.id)
        .join(bindings, bindings.c.conversation_id == conversations.c.id)
        .where(conversations.c.last_seq > 0, bindings.c.ref.startswith(f"{member_id}:", autoescape=True))
        .limit(1)
    )
    return {
        "keys": list(connection.execute(names).scalars()),
        "talked": connection.execute(talked).first() is not None,
        "connected": {name: _connected(connection, name) for name in OFFERED},
    }


def _connected(connection: Connection, integration: str) -> list[dict[str, Any]]:
    heard = (
        select(func.max(deliveries.c.received_at))
        .where(deliveries.c.connection_id == connections.c.id)
        .scalar_subquery()
    )
    query = (
        select(connections.c.id, connections.c.name, connections.c.enabled, heard.label("heard_at"))
        .where(connections.c.integration == integration)
        .order_by(connections.c.created_at)
    )
    return [dict(row._mapping) for row in connection.execute(query)]
