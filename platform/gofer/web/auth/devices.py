"""Devices: keys that programs connect with over the gateway protocol, each paired with a member.

A device's token is good only together with a proof of the device's key. Only its hash is stored.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Iterable
from typing import Any

from sqlalchemy import Connection, func, select, update

from gofer.devices import forget_unpaired, require_device, waiting_devices
from gofer.errors import Conflict, Malformed
from gofer.store import row_macs
from gofer.store.db_time import now
from gofer.store.tables import devices, members
from gofer.web.auth.members import digest, find_member, new_value
from gofer.web.auth.principal import Role, Visitor, lesser
from gofer.web.auth.sessions import TOKEN

DEVICE_TOKEN = f"{TOKEN}device_"
"""What the token of a device begins with."""
MAX_DEVICES = 50
"""Devices of one member, including those that wait to be paired."""


def device_id(public_key: str) -> str:
    """The id of a device by its public key, in base64 for addresses; raises Malformed."""
    try:
        raw = base64.b64decode(public_key + "=" * (-len(public_key) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raw = b""
    if len(raw) != 32:
        raise Malformed("public_key: must be the 32 bytes of an Ed25519 key, in base64 for addresses.")
    return hashlib.sha256(raw).hexdigest()


def add_device(
    connection: Connection, member_id: str, *, public_key: str, name: str, scopes: Iterable[str], paired: bool
) -> str:
    """Keep a device of a member, paired or waiting for it; returns its id. Raises Conflict."""
    id_ = device_id(public_key)
    row_macs.require(connection, members, find_member(connection, member_id))
    forget_unpaired(connection)
    if connection.execute(select(devices.c.id).where(devices.c.id == id_)).first() is not None:
        raise Conflict("There is such a device already. Remove it first: gofer devices remove")
    if not has_room(connection, member_id):
        raise Conflict(f"A member has {MAX_DEVICES} devices at most. Remove one: gofer devices remove")
    row = {
        "id": id_,
        "member_id": member_id,
        "name": name[:100],
        "scopes": " ".join(scopes),
        "created_at": now(),
        "paired_at": now() if paired else None,
    }
    row_macs.insert(connection, devices, row)
    return id_


def has_room(connection: Connection, member_id: str) -> bool:
    """Whether a member may have one more device."""
    count = select(func.count()).select_from(devices).where(devices.c.member_id == member_id)
    return int(connection.execute(count).scalar_one()) < MAX_DEVICES


def new_device_token(connection: Connection, id_: str) -> str:
    """A new token of a paired device, in place of the one it has; shown this once. Raises NotFound and Conflict."""
    if require_device(connection, id_).paired_at is None:
        raise Conflict("The device is not paired.")
    value = DEVICE_TOKEN + new_value()
    row_macs.update(connection, devices, devices.c.id == id_, {"digest": digest(value)})
    return value


def revoke_device_token(connection: Connection, id_: str) -> None:
    """Revoke a device's token; the device stays paired. Raises NotFound."""
    require_device(connection, id_)
    row_macs.update(connection, devices, devices.c.id == id_, {"digest": None})


def by_device(connection: Connection, value: str, id_: str) -> tuple[Visitor, tuple[str, ...]] | None:
    """Whose token of a device it is, and the scopes that it was paired with; None when it is unknown."""
    query = select(members, devices, members.c.name.label("member")).join(
        devices, devices.c.member_id == members.c.id
    )
    here = (devices.c.id == id_) & (devices.c.digest == digest(value)) & devices.c.paired_at.is_not(None)
    row = connection.execute(query.where(here)).one_or_none()
    if row is None:
        return None
    mapping = row._mapping
    if not row_macs.fits(connection, devices, row) or not row_macs.fits(connection, members, row):
        return None
    scopes = tuple(mapping[devices.c.scopes].split())
    role = lesser(mapping[members.c.role], _role_for(scopes))
    return Visitor(mapping[devices.c.member_id], row.member, role, "token", f"device:{id_[:16]}"), scopes


def _role_for(scopes: Iterable[str]) -> Role:
    """The most that a device may do whose scopes these are."""
    if "operator.admin" in scopes:
        return "owner"
    return "operator" if "operator.write" in scopes else "viewer"


def device_used(connection: Connection, id_: str) -> None:
    """Note that a device has connected."""
    connection.execute(update(devices).where(devices.c.id == id_).values(used_at=now()))


def list_devices(connection: Connection) -> list[dict[str, Any]]:
    """Every device, the newest first."""
    query = (
        select(devices, members.c.name.label("member"))
        .join(members, members.c.id == devices.c.member_id)
        .order_by(devices.c.created_at.desc(), devices.c.id)
    )
    waiting = waiting_devices(connection)
    return [
        {
            "id": row.id,
            "name": row.name,
            "member": row.member,
            "scopes": row.scopes.split(),
            "paired": row.paired_at is not None,
            "waiting": row.paired_at is None and row.id in waiting,
            "has_token": row.digest is not None,
            "created_at": row.created_at,
            "used_at": row.used_at,
            "refused": not row_macs.fits(connection, devices, row),
        }
        for row in connection.execute(query).all()
    ]
