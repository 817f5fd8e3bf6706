"""Devices that programs connect with over the gateway protocol, and the question whether a new one may.

A device that comes from elsewhere waits. A job asks the owners about it wherever they are asked other things, and pairs
it when one of them approves. The program gets in when it connects again.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from sqlalchemy import Connection, Row, delete, func, select

from gofer.connections.context import LoadedConnections
from gofer.errors import NotFound
from gofer.jobs.control import answer_to, withdraw
from gofer.jobs.kinds import DEVICE
from gofer.jobs.outcome import OWNERS, Done, Outcome
from gofer.jobs.queue import SERVICE, Claim, submit
from gofer.jobs.worker import Run
from gofer.outbox.role_questions import ask_role, own_conversation
from gofer.sanitize import display_name
from gofer.store import audit, row_macs
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.tables import LIVE, JobState, devices, in_state, jobs, members, questions
from gofer.vault.envelope import Vault

APPROVE, DECLINE = "Approve", "Decline"
TITLE = "Devices"
PENDING_LIFE = 86400.0
"""Seconds for which a device waits to be paired. One that was declined may ask again after them."""
MAX_ASKED = 5
"""Devices of one member that owners are asked about at once; more of them wait in the list alone."""
# In a name of a program's own choosing nothing may look like words of ours, or like a link.
QUESTION = (
    "The program `{name}` wants to connect as {member}, from `{address}`. It is a new device, `{id}`, and asks for: "
    "{scopes}. May it? It gets in when it connects again."
)


def find_device(connection: Connection, id_: str) -> Row[Any] | None:
    """A device that Gofer itself wrote, paired or not."""
    row = connection.execute(select(devices).where(devices.c.id == id_)).one_or_none()
    return row if row is not None and row_macs.fits(connection, devices, row) else None


def require_device(connection: Connection, id_: str) -> Row[Any]:
    """A device, paired or not; raises NotFound."""
    row = find_device(connection, id_)
    if row is None:
        raise NotFound(f"There is no device {id_[:70]!r}. `gofer devices list` shows those there are.")
    return row


def pair_device(connection: Connection, vault: Vault, id_: str, *, by: str) -> Row[Any]:
    """Pair a device that waits for it, without a question; returns its row. Raises NotFound."""
    row = require_device(connection, id_)
    if row.paired_at is None:
        row = _pair(connection, id_)
        _withdraw(connection, vault, id_, f"{by} paired the device")
    return row


def _pair(connection: Connection, id_: str) -> Row[Any]:
    return row_macs.update(connection, devices, devices.c.id == id_, {"paired_at": now()})[0]


def decline_device(connection: Connection, vault: Vault, id_: str, *, by: str) -> None:
    """Turn away a device that waits: it is not asked about again for a day. Raises NotFound."""
    if require_device(connection, id_).paired_at is not None:
        raise NotFound("The device is paired already. Remove it instead.")
    _withdraw(connection, vault, id_, f"{by} declined the device")


def remove_device(connection: Connection, vault: Vault, id_: str, *, by: str) -> None:
    """Forget a device and its token; raises NotFound."""
    if connection.execute(delete(devices).where(devices.c.id == id_)).rowcount == 0:
        raise NotFound(f"There is no device {id_[:70]!r}. `gofer devices list` shows those there are.")
    _withdraw(connection, vault, id_, f"{by} removed the device")


def forget_unpaired(connection: Connection) -> None:
    """Forget the devices that have waited for too long."""
    old = devices.c.paired_at.is_(None) & (devices.c.created_at < now() - PENDING_LIFE)
    connection.execute(delete(devices).where(old))


# The question.


def ask_about_device(
    connection: Connection, vault: Vault, device: Row[Any], *, member: str, address: str
) -> None:
    """Make the job that asks the owners about a device; once for each time that it begins to wait."""
    lanes = f"{DEVICE}:{device.member_id}:"
    open_ones = (
        select(func.count()).select_from(jobs).where(jobs.c.kind == DEVICE, in_state(*LIVE, JobState.BLOCKED))
    )
    mine = open_ones.where(jobs.c.lane.startswith(lanes, autoescape=True))
    if int(connection.execute(mine).scalar_one()) >= MAX_ASKED:
        return
    submit(
        connection,
        workspace_id=FIRST_WORKSPACE,
        kind=DEVICE,
        lane=f"{lanes}{device.id}",
        pool=SERVICE,
        payload={"device": device.id, "member": member, "address": address},
        unique_key=f"{DEVICE}:{device.id}:{device.created_at}",
        conversation_id=own_conversation(connection, vault, kind="devices", title=TITLE),
    )


def waiting_devices(connection: Connection) -> set[str]:
    """The devices that owners are being asked about."""
    answered = select(questions.c.id).where(
        questions.c.job_id == jobs.c.id, questions.c.answered_at.is_not(None)
    )
    query = select(jobs.c.payload).where(jobs.c.kind == DEVICE, in_state(*LIVE), ~answered.exists())
    return {str(payload["device"]) for payload in connection.execute(query).scalars()}


def _withdraw(connection: Connection, vault: Vault, id_: str, why: str) -> None:
    query = (
        select(questions.c.id)
        .join(jobs, jobs.c.id == questions.c.job_id)
        .where(jobs.c.kind == DEVICE, jobs.c.lane.endswith(f":{id_}", autoescape=True))
        .where(questions.c.answered_at.is_(None))
    )
    for question_id in connection.execute(query).scalars().all():
        withdraw(connection, vault, question_id, why=why)


@dataclass(frozen=True, slots=True)
class DeviceQuestions:
    """Handles the jobs that ask about devices."""

    database: Database
    vault: Vault
    accounts: LoadedConnections

    async def handle(self, run: Run) -> Outcome:
        """Ask; when an owner approves, pair the device that was asked about."""
        claim = run.claim
        device = await self.database.read(find_device, id_=str(claim.payload["device"]))
        if device is None or device.paired_at is not None:
            return Done()  # it was decided elsewhere
        # What was approved is in the question's signed row: this key, for these scopes.
        about = f"{DEVICE} {device.id} {device.scopes}"
        given = await self.database.read(answer_to, vault=self.vault, job_id=claim.id, call_id=about)
        if not given.asked or given.open:
            return await self._question(claim, device, about)
        if given.text != APPROVE:
            return Done(reason="" if given.text else "question.expired")
        await self.database.write(_approved, claim=claim, scopes=device.scopes, by=given.by)
        return Done()

    async def _question(self, claim: Claim, device: Row[Any], about: str) -> Outcome:
        # By the device's signed row: the job's could have been changed to name somebody else.
        whose = select(members.c.name).where(members.c.id == device.member_id)
        member = await self.database.read(lambda connection: connection.execute(whose).scalar_one())
        text = QUESTION.format(
            name=display_name(device.name) or "without a name",
            member=display_name(member),
            address=claim.payload["address"],
            id=device.id[:16],
            scopes=", ".join(f"`{scope}`" for scope in device.scopes.split()) or "nothing",
        )
        connected = await self.accounts.all()
        return await self.database.read(
            ask_role,
            connected=connected,
            role=OWNERS,
            workspace_id=claim.workspace_id,
            text=text,
            about=about,
            choices=(APPROVE, DECLINE),
            expires_after=PENDING_LIFE,
        )


def _approved(connection: Connection, claim: Claim, scopes: str, by: str) -> None:
    device = find_device(connection, str(claim.payload["device"]))
    if device is None or device.paired_at is not None or device.scopes != scopes:
        return
    _pair(connection, device.id)
    who = {"workspace_id": claim.workspace_id, "member_id": "", "name": by, "via": "question", "address": ""}
    id_ = audit.append(connection, {**who, "action": "device.paired", "subject": device.id})
    audit.end(connection, id_, status=200, data={"scopes": scopes})
