"""Schedules, questions and the configuration over OpenClaw's gateway protocol, under the names they have there.

A job of its cron is a schedule of ours that says something to an agent. An approval is a question that a run asks.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import re
from functools import partial
from typing import Annotated, Any, TypeVar

from pydantic import Field
from sqlalchemy import Connection

from gofer.errors import Forbidden, NotFound
from gofer.intake.scheduled_messages import ScheduledMessage, add_scheduled_message
from gofer.jobs.control import answer
from gofer.jobs.kinds import SAY
from gofer.jobs.notifications import JOBS
from gofer.web.auth.principal import narrowed
from gofer.web.protocols.gateway_client import GatewayCall, GatewayClient, Method, NoParams
from gofer.web.protocols.gateway_frames import (
    ADMIN,
    APPROVALS,
    READ,
    Frame,
    GatewayError,
    Params,
    Text,
    invalid,
)
from gofer.web.protocols.gateway_instance import listed_agents
from gofer.web.queries import schedules
from gofer.web.queries.jobs import wake
from gofer.web.queries.questions import list_questions

T = TypeVar("T")
MAX_LISTED = 200
WAIT_FOR_ANSWER = 600.0
"""Seconds that `exec.approval.waitDecision` waits."""
LOOK_AGAIN = 1.0
"""Seconds between two looks whether a question was answered."""
NO = re.compile(r"(no|deny|reject|refuse|decline|cancel|stop)\b", re.I)
ALLOW, ALWAYS, DENY = "allow-once", "allow-always", "deny"
MINUTE, HOUR, DAY = 60_000, 3_600_000, 86_400_000


class CronListParams(Params):
    """`cron.list`"""

    limit: Annotated[int, Field(ge=1, le=MAX_LISTED)] = 50
    offset: Annotated[int, Field(ge=0, lt=2**31)] = 0
    includeDisabled: bool = False


class CronTimes(Params):
    """When: a cron line, or so many milliseconds between two times."""

    kind: Text
    expr: Text | None = None
    tz: Text | None = None
    everyMs: Annotated[int, Field(ge=1)] | None = None


class CronPayload(Params):
    """What is said."""

    kind: Text
    text: Annotated[str, Field(max_length=schedules.MAX_TEXT)] | None = None
    message: Annotated[str, Field(max_length=schedules.MAX_TEXT)] | None = None


class CronAddParams(Params):
    """`cron.add`"""

    name: Annotated[str, Field(min_length=1, max_length=100)]
    schedule: CronTimes
    payload: CronPayload
    sessionTarget: Annotated[str, Field(min_length=1, max_length=520)] = "main"
    sessionKey: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    agentId: Text | None = None


class CronNamed(Params):
    """A job of the cron by its id, under either name."""

    id: Text | None = None
    jobId: Text | None = None

    @property
    def named(self) -> str:
        """Its id; raises GatewayError."""
        if not self.id and not self.jobId:
            raise invalid("invalid cron params: id: is required")
        return self.id or self.jobId or ""


class ApprovalParams(Params):
    """An approval by its id."""

    id: Text


class ResolveParams(ApprovalParams):
    """`exec.approval.resolve`"""

    decision: Text


# Schedules.


async def cron_list(call: GatewayCall) -> Frame:
    """The schedules that say something."""
    params: CronListParams = call.params
    found = await _schedules(call.client)
    shown = [_cron_job(row) for row in found if row["enabled"] or params.includeDisabled]
    page = _masked(call, shown[params.offset : params.offset + params.limit])
    return {"jobs": page, "total": len(shown), "offset": params.offset, "limit": params.limit}


def _masked(call: GatewayCall, told: T) -> T:
    """What people said, without what is a secret by now."""
    shown: T = call.client.platform.redactor.redact_value(told)
    return shown


def may_read_schedules(client: GatewayClient) -> bool:
    """Whether a client may know of schedules."""
    try:
        narrowed(client.visitor, "schedules")
    except Forbidden:
        return False
    return not client.visitor.agent


async def _schedules(client: GatewayClient) -> list[Frame]:
    if client.visitor.agent:
        return []
    visitor = narrowed(client.visitor, "schedules")  # raises Forbidden
    read = partial(schedules.list_schedules, vault=client.platform.vault, visitor=visitor)
    return [row for row in await client.platform.database.read(read) if row["kind"] == SAY]


def _cron_job(row: Frame) -> Frame:
    at = int(row["created_at"] * 1000)
    upcoming = {"nextRunAtMs": int(row["next_at"] * 1000)} if row["enabled"] else {}
    return {
        "id": row["id"],
        "name": row["name"],
        "enabled": bool(row["enabled"]),
        **({"agentId": row["agent"]} if row["agent"] else {}),
        "createdAtMs": at,
        "updatedAtMs": at,
        "schedule": {"kind": "cron", "expr": row["cron"], "tz": row["timezone"]},
        "sessionTarget": f"session:{row['conversation_id'] or 'gone'}",
        "wakeMode": "now",
        "payload": {"kind": "agentTurn", "message": row["say"] or "(purged)"},
        "state": upcoming,
    }


async def cron_add(call: GatewayCall) -> Frame:
    """Have something said to an agent again and again, with the trust of the owner who adds it."""
    params: CronAddParams = call.params
    client, platform = call.client, call.client.platform
    text = params.payload.message or params.payload.text or ""
    if params.payload.kind not in ("agentTurn", "systemEvent") or not text.strip():
        raise invalid("cron.add: payload must be an agentTurn with a message, or a systemEvent with a text")
    key = params.sessionKey or params.sessionTarget.removeprefix("session:")
    session = await client.find_session("main" if key in ("current", "isolated") else key, params.agentId)
    room = await client.open_room(session)
    said = ScheduledMessage(room.agent or session.agent, room.id, client.visitor.member_id, text)

    def verb(connection: Connection, **times: Any) -> str:
        return add_scheduled_message(connection, platform.vault, said, **times)

    times = {"cron": cron_line(params.schedule), "timezone": params.schedule.tz or "", "missed": "once"}
    schedule_id = await schedules.add(platform, verb, name=params.name, **times)
    found = {row["id"]: row for row in await _schedules(client)}
    return _masked(call, _cron_job(found[schedule_id]))


def cron_line(given: CronTimes) -> str:
    """A schedule as a cron line; raises GatewayError for one that is none."""
    if given.kind == "cron" and given.expr:
        return given.expr
    every = given.everyMs if given.kind == "every" else None
    if every is not None:
        for unit, most, line in (
            (DAY, 1, "0 0 * * *"),
            (HOUR, 24, "0 */{} * * *"),
            (MINUTE, 60, "*/{} * * * *"),
        ):
            count, rest = divmod(every, unit)
            if not rest and count and most % count == 0:
                return line.format(count)
    raise invalid(
        "cron.add: schedule must be a cron line, or so many minutes or hours as divide an hour or a day"
    )


async def cron_remove(call: GatewayCall) -> Frame:
    """Remove a schedule."""
    await call.client.platform.database.write(partial(_remove, named=call.params.named))
    return {"ok": True, "removed": True}


def _remove(connection: Connection, named: str) -> None:
    schedules.remove_schedule(connection, _said_by(connection, named))


def _said_by(connection: Connection, named: str) -> Frame:
    """A schedule that says something; raises NotFound for any other one."""
    row = schedules.find_schedule(connection, named, to_change=True)
    if row["kind"] != SAY:
        raise NotFound(f"There is no schedule {named[:60]!r} that says something.")
    return row


async def cron_run(call: GatewayCall) -> Frame:
    """Have a schedule say its words now, beside its own times."""
    platform = call.client.platform
    job_id = await platform.database.write(partial(_run, named=call.params.named))
    platform.signals.wake(JOBS)
    return {"ok": True, "enqueued": True, "runId": f"job-{job_id}"}


def _run(connection: Connection, named: str) -> int:
    return schedules.run_schedule(connection, _said_by(connection, named)["id"])


# Questions.


async def approval_list(call: GatewayCall) -> list[Frame]:
    """The questions that are open."""
    return _masked(call, [_approval(each) for each in await _questions(call.client)])


async def approval_get(call: GatewayCall) -> Frame:
    """One question."""
    return _masked(call, _approval(await _question(call.client, call.params.id)))


async def approval_resolve(call: GatewayCall) -> Frame:
    """Answer a question: with a choice that allows it, or with one that does not."""
    params: ResolveParams = call.params
    client, platform = call.client, call.client.platform
    question = await _question(client, params.id)
    if question["answered_at"] is not None:
        raise _no_approval(params.id)
    await platform.database.write(
        partial(
            answer,
            vault=platform.vault,
            question_id=params.id,
            text=answer_for(params.decision, question["choices"]),
            by=client.visitor.name,
            trust="owner" if narrowed(client.visitor, "questions").may("owner") else "member",
        )
    )
    wake(platform)
    return {"ok": True}


async def approval_wait(call: GatewayCall) -> Frame:
    """Wait until a question is answered."""
    deadline = asyncio.get_running_loop().time() + WAIT_FOR_ANSWER
    while (question := await _question(call.client, call.params.id))["answered_at"] is None:
        if asyncio.get_running_loop().time() > deadline:
            break
        await asyncio.sleep(LOOK_AGAIN)
    return {**_times(question), "decision": decision_of(question)}


async def _questions(client: GatewayClient, *, closed: bool = False) -> list[Frame]:
    visitor = narrowed(client.visitor, "questions")
    return await client.platform.database.read(
        partial(
            list_questions,
            vault=client.platform.vault,
            closed=closed,
            visitor=visitor,
            limit=MAX_LISTED,
        )
    )


async def _question(client: GatewayClient, question_id: str) -> Frame:
    for closed in (False, True):
        for each in await _questions(client, closed=closed):
            if each["id"] == question_id:
                return each
    raise _no_approval(question_id)


def _no_approval(question_id: str) -> GatewayError:
    return GatewayError("APPROVAL_NOT_FOUND", f"There is no open approval {question_id[:60]!r}.")


def _times(question: Frame) -> Frame:
    told: Frame = {"id": question["id"], "createdAtMs": int(question["asked_at"] * 1000)}
    if question["expires_at"] is not None:
        told["expiresAtMs"] = int(question["expires_at"] * 1000)
    return told


def _approval(question: Frame) -> Frame:
    asked = {"command": question["question"], "choices": question["choices"]}
    return {**_times(question), "request": asked, "commandText": question["question"]}


def answer_for(decision: str, choices: list[str]) -> str:
    """The choice that a decision stands for; raises GatewayError."""
    if decision not in (ALLOW, ALWAYS, DENY):
        raise invalid(f"decision: must be {ALLOW}, {ALWAYS} or {DENY}")
    if decision == DENY:
        return next((choice for choice in choices if NO.match(choice)), "no")
    allowing = [choice for choice in choices if not NO.match(choice)]
    lasting = [choice for choice in allowing if "always" in choice.lower()]
    once = [choice for choice in allowing if choice not in lasting]
    wanted = [*lasting, *once] if decision == ALWAYS else [*once, *lasting]
    return wanted[0] if wanted else "yes"


def decision_of(question: Frame) -> str | None:
    """The decision that an answer stands for; None for none."""
    said = question["answer"]
    if not said:
        return None
    if NO.match(said):
        return DENY
    return ALWAYS if "always" in said.lower() else ALLOW


# The configuration.


async def config_get(call: GatewayCall) -> Frame:
    """What clients read of a configuration: the agents. Nothing secret, and no path of this machine."""
    agents = await listed_agents(call.client)
    config: Frame = {
        "agents": {"list": [{"id": name, "model": each["model"]} for name, each in agents.items()]},
        "gateway": {"auth": {"mode": "token", "token": "__REDACTED__"}},
    }
    raw = json.dumps(config, sort_keys=True)
    facts = {"path": "", "exists": True, "valid": True, "issues": [], "warnings": []}
    return {
        **facts,
        "raw": raw,
        "parsed": config,
        "config": config,
        "hash": hashlib.sha256(raw.encode()).hexdigest(),
    }


METHODS: dict[str, Method] = {
    "cron.list": Method(cron_list, CronListParams, READ),
    "cron.add": Method(cron_add, CronAddParams, ADMIN, audited=True),
    "cron.remove": Method(cron_remove, CronNamed, ADMIN, audited=True),
    "cron.run": Method(cron_run, CronNamed, ADMIN, audited=True),
    "exec.approval.list": Method(approval_list, NoParams, APPROVALS),
    "exec.approval.get": Method(approval_get, ApprovalParams, APPROVALS),
    "exec.approval.resolve": Method(approval_resolve, ResolveParams, APPROVALS, audited=True),
    "exec.approval.waitDecision": Method(approval_wait, ApprovalParams, APPROVALS, waits=True),
    "config.get": Method(config_get, NoParams, READ),
}
