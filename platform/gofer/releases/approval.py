"""Asks the owners whether a release may run, and tells them which one does. Both are jobs of one conversation.

The supervisor knows nobody. So a process of the running release looks for releases that wait for a word, and asks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from sqlalchemy import Connection, func, select

from gofer.connections.context import LoadedConnections
from gofer.errors import Conflict, NotFound
from gofer.identity import WEB_CHAT
from gofer.jobs.control import GivenAnswer, answer_to
from gofer.jobs.kinds import RELEASE_BUILD, RELEASE_NOTICE, RELEASE_QUESTION
from gofer.jobs.outcome import OWNERS, Dead, Done, Draft, Outcome, Snooze, Wait
from gofer.jobs.queue import SERVICE, submit
from gofer.jobs.worker import Run
from gofer.outbox.role_questions import ask_role, last_web_rooms, own_conversation, private_chats
from gofer.releases.lifecycle import (
    approve,
    decline,
    deploy,
    home_id,
    manifest_in,
    roll_back,
    untrusted,
    waiting_releases,
)
from gofer.releases.source import describe_changes, parse_diff
from gofer.releases.wheel import ReleaseRefused
from gofer.store import migrations
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.database import Database
from gofer.store.db_time import now
from gofer.store.tables import attempts, bindings, jobs, questions
from gofer.vault.envelope import Vault
from gofer_supervisor.home import CURRENT, Home

APPROVE, DECLINE = "Approve", "Decline"
OPEN_FOR = 7 * 86400.0
"""Seconds in which the question can be answered."""
KIND, TITLE = "updates", "Updates"
ROLL_BACK, KEEP = "Roll back", "Keep it"
QUESTION = (
    "A release of Gofer waits for your word: **{version}** (`{build}`{revision}). {origin} "
    "Its own check found: {checked}. {migration} Shall it run? "
    "The release before comes back by itself if it does not work."
)
CHANGED = (
    "The agent {agent} made it, asked by {by}: {summary}\n\nIt changes {changes}. {link}\n\n"
    "```diff\n{diff}\n```\n\n"
)
MAX_SHOWN = 1500
"""Characters of a diff that the question itself shows."""
PROMOTED, OUTAGE = "revision.promoted", "worker.crash_loop"
NOTICES = {
    PROMOTED: "Gofer runs the release `{build}`, which has proved itself.",
    "revision.rolled_back": "The release `{build}` was taken back, and `{to}` runs again. {reason}",
    OUTAGE: "Gofer could not run for a while: it ended again and again. {reason} It was started again since.",
}
"""The notice for owners, by kind of event."""
NONE_BEFORE = "The release `{build}` does not work as it should, and there is none to go back to. {reason}"
NOTICE_FIELDS = ("build", "to", "reason", "previous")
CAN_GO_BACK = " The release before was `{previous}`; you can have it back."
ON_PAGE = " The page Versions has the button for that."
BUSY = 15.0
"""Seconds until a release is tried again whose turn has not come."""
ELSEWHERE = "release.elsewhere"
"""Why a job about a release waits: a worker of the machine that has the release has to take it."""
FIRST_WAIT, MAX_WAIT, SHARE_OF_WAIT = 2.0, 600.0, 0.1
"""Seconds until that worker may take it; growing, by a share of how long the job has waited."""
GONE = "release.machine_gone"
MACHINE_GONE = (
    "The machine that has the release `{build}` was not heard of for seven days, so nothing is done there about "
    "what was asked or said of it. If that machine is there again, use `gofer update` on it."
)


def ask_about_waiting(connection: Connection, vault: Vault, home: Home) -> int:
    """Make the job that asks about each release that nobody has approved or declined; returns how many were made."""
    made = [
        submit(
            connection,
            workspace_id=FIRST_WORKSPACE,
            kind=RELEASE_QUESTION,
            lane=f"release:{build}",
            pool=SERVICE,
            payload={"build": build, "staged_at": manifest.get("staged_at"), "home": home_id(home)},
            unique_key=":".join(["release.question", build, *_staging(manifest)]),
            conversation_id=updates_conversation(connection, vault),
        )
        for build, manifest in waiting_releases(home).items()
        if not untrusted(home, manifest)
    ]
    return sum(job is not None for job in made)


def _staging(manifest: Mapping[str, Any]) -> list[str]:
    """Distinguishes one staging of a release from another: each has its own question."""
    return [f"{manifest['staged_at']}"] if manifest.get("staged_at") else []


def decided_questions(connection: Connection, home: Home) -> list[tuple[str, str]]:
    """The open questions about releases that were decided elsewhere, such as at the command line: what became of each,
    by the question's id."""
    query = (
        select(questions.c.id, jobs.c.kind, jobs.c.payload)
        .join(jobs, jobs.c.id == questions.c.job_id)
        .where(questions.c.answered_at.is_(None), jobs.c.kind.in_((RELEASE_QUESTION, RELEASE_NOTICE)))
    )
    ours = [row for row in connection.execute(query) if _is_of(home, row.payload)]
    asked = [(row.id, _decided(home, row.kind, row.payload)) for row in ours]
    return [(question_id, why) for question_id, why in asked if why]


def _is_of(home: Home, payload: Mapping[str, Any]) -> bool:
    """Whether a job is about a release of this machine: each has a home of its own."""
    return payload.get("home") in (None, home_id(home))


def _decided(home: Home, kind: str, payload: Mapping[str, Any]) -> str:
    """What became of a release that nobody need answer about any more; empty while somebody should."""
    build = str(payload["build"])
    manifest = home.manifests().get(build)
    if kind == RELEASE_NOTICE:
        return "" if home.linked(CURRENT) == build else f"{build} does not run any more"
    if manifest is None:
        return f"{build} was removed"
    if manifest.get("approved_by"):
        return f"{manifest['approved_by']} approved {build}"
    if manifest.get("declined_by"):
        return f"{manifest['declined_by']} declined {build}"
    if manifest.get("staged_at") != payload.get("staged_at"):
        return f"{build} was staged again"
    return untrusted(home, manifest)


def tell_owners(connection: Connection, vault: Vault, number: int, kind: str, data: dict[str, Any]) -> None:
    """Make the job that tells the owners what became of a release. The event's number makes it once; an outage is told
    of once, however often a start failed in it."""
    first_ever = kind == PROMOTED and not data.get("previous")
    no_outage = kind == OUTAGE and not data.get("outage")
    mark = f"outage:{data.get('home')}:{data['outage']}" if kind == OUTAGE and not no_outage else number
    if kind in NOTICES and not first_ever and not no_outage:
        submit(
            connection,
            workspace_id=FIRST_WORKSPACE,
            kind=RELEASE_NOTICE,
            lane=f"release.notice:{mark}",
            pool=SERVICE,
            payload={"kind": kind, "home": data.get("home")}
            | {name: str(data.get(name, "")) for name in NOTICE_FIELDS},
            unique_key=f"release.notice:{mark}",
            conversation_id=updates_conversation(connection, vault),
        )


def updates_conversation(connection: Connection, vault: Vault) -> str:
    """The conversation that questions and notices about releases belong to."""
    return own_conversation(connection, vault, kind=KIND, title=TITLE)


@dataclass(frozen=True, slots=True)
class ReleaseJobs:
    """The handlers of both kinds of job."""

    database: Database
    vault: Vault
    accounts: LoadedConnections
    home: Home
    url: str = ""
    """Where the dashboard is."""

    async def ask(self, run: Run) -> Outcome:
        """Ask every owner where they are; with a yes, hand the release to the supervisor."""
        build = str(run.claim.payload["build"])
        if not _is_of(self.home, run.claim.payload):
            return await self._wait_for_machine(run)
        given = await self._answer(run, f"release {build}")
        try:
            if not given.text and _decided(self.home, RELEASE_QUESTION, run.claim.payload):
                return Done()
            if not given.asked or given.open:
                return await self._question(build)
            if given.text != APPROVE:
                decline(self.home, build, by=given.by or "nobody, in time")
                return Done()
            known = manifest_in(self.home, build)
            if known.get("taken_back") or known.get("approved_by") not in (None, "", given.by):
                return Done()  # it ran already, or somebody approved it elsewhere and saw what became of it
            approve(self.home, build, by=given.by)
            if build not in (self.home.linked(CURRENT), (self.home.load().trial or {}).get("build")):
                deploy(self.home, build, by=given.by)
        except NotFound:
            return Dead("release.gone", detail=f"Release {build} is not in the home any more.")
        except ReleaseRefused as error:
            return Dead("release.refused", detail=str(error))
        except Conflict:
            return Snooze(BUSY, "release.busy")  # another one is being deployed
        return Done()

    async def _answer(self, run: Run, about: str) -> GivenAnswer:
        return await self.database.read(
            partial(answer_to, vault=self.vault, job_id=run.claim.id, call_id=about)
        )

    async def _question(self, build: str) -> Outcome:
        manifest = manifest_in(self.home, build)
        text = QUESTION.format(
            version=manifest["version"],
            build=build,
            revision=f", revision {manifest['revision'][:12]}" if manifest.get("revision") else "",
            origin=self._origin(build, manifest),
            checked=manifest.get("checked") or "nothing",
            migration=self._migration(manifest),
        )
        asked = await self._ask_owners(text, f"release {build}", (APPROVE, DECLINE))
        return replace(asked, drafts=(*asked.drafts, *await self._where_it_was_wanted(manifest, text)))

    async def _where_it_was_wanted(self, manifest: Mapping[str, Any], text: str) -> list[Draft]:
        """The question for the place in which a change was asked for, such as an issue, if owners cannot be asked there
        in private. Whoever else reads it may not answer."""
        mark = str((manifest.get("change") or {}).get("mark", ""))
        if not mark.isdigit():
            return []
        made_by = select(bindings.c.id, bindings.c.connection_id).join(
            jobs,
            (jobs.c.conversation_id == bindings.c.conversation_id)
            & (jobs.c.connection_id == bindings.c.connection_id),
        )
        query = made_by.where(jobs.c.id == int(mark), jobs.c.kind == RELEASE_BUILD)
        rows = await self.database.read(lambda connection: connection.execute(query).all())
        connected = {one.account.id: one for one in await self.accounts.all() if one.enabled}
        return [
            Draft(row.id, tuple(one.integration.split(text)), "note")
            for row in rows
            if (one := connected.get(row.connection_id)) is not None
            and one.integration.name != WEB_CHAT
            and one.integration.private_place("1") is None
        ]

    def _origin(self, build: str, manifest: Mapping[str, Any]) -> str:
        """Where a release is from, in sentences: who signed it, or what was changed and by whom."""
        if manifest.get("signed_by"):
            return f"It is signed with the trusted key `{manifest['signed_by']}`."
        change = manifest.get("change")
        if not change:
            return "It is **not signed**; whoever staged it accepted that."
        diff = str(change["diff"])
        shown = diff if len(diff) <= MAX_SHOWN else f"{diff[:MAX_SHOWN]}\n… and more"
        where = f"{self.url}/versions/{build}" if self.url else "the page Versions of the dashboard"
        return CHANGED.format(
            agent=change["agent"],
            by=change["by"],
            summary=change["summary"],
            changes=describe_changes(parse_diff(diff.encode())),
            link=f"The whole change: {where}",
            diff=shown.replace("```", "`\u200b``"),  # a fence in the text would end ours
        )

    def _migration(self, manifest: Mapping[str, Any]) -> str:
        new = str(manifest.get("schema") or "")
        if not new:
            return "It does not say which version of the store it needs; a copy is made first on SQLite."
        if new == migrations.newest():
            return f"It leaves the store at version {new}, as it is."
        return f"It brings the store from version {migrations.newest()} to {new}; a copy is made first on SQLite."

    async def _ask_owners(self, text: str, about: str, choices: tuple[str, str]) -> Wait:
        connected = await self.accounts.all()
        return await self.database.read(
            partial(
                ask_role,
                connected=connected,
                role=OWNERS,
                workspace_id=FIRST_WORKSPACE,
                text=text,
                about=about,
                choices=choices,
                expires_after=OPEN_FOR,
            )
        )

    async def tell(self, run: Run) -> Outcome:
        """Tell every owner in their private chat, or else in the room of the web chat in which they wrote last.
        Whoever wants the release before back presses a button."""
        payload = run.claim.payload
        facts = {name: str(payload.get(name, "")) for name in NOTICE_FIELDS}
        can_go_back = payload.get("kind") == PROMOTED and bool(facts["previous"])
        text = _notice(payload).format(**facts)
        if room := payload.get("room"):
            more = CAN_GO_BACK.format(**facts) + ON_PAGE if can_go_back else ""
            connected = await self.accounts.get(str(run.claim.connection_id))
            return Done((Draft(str(room), tuple(connected.integration.split(text + more)), "note"),))
        if can_go_back and not _is_of(self.home, payload):
            return await self._wait_for_machine(run)
        given = await self._answer(run, f"running {facts['build']}")
        if not given.asked:
            await self._tell_in_rooms(run, payload)
        over = can_go_back and _decided(self.home, RELEASE_NOTICE, payload)
        if over and given.asked and not given.text:
            return Done()
        if can_go_back and (given.asked or not over):
            return await self._tell_with_way_back(given, text, facts)
        return Done(await self._notes(text))

    async def _notes(self, text: str) -> tuple[Draft, ...]:
        """A note for the private chat of every owner."""
        connected = await self.accounts.all()
        places = await self.database.read(
            lambda connection: list(private_chats(connection, connected, FIRST_WORKSPACE, ("owner",)))
        )
        return tuple(Draft(binding, tuple(one.integration.split(text)), "note") for one, binding in places)

    async def _tell_in_rooms(self, run: Run, payload: Mapping[str, Any]) -> None:
        """Make the jobs that say the same to owners who have the web chat alone: what a job says is shown in rooms of
        its own conversation. The job's id makes each once."""
        connected = await self.accounts.all()

        def make(connection: Connection) -> None:
            for room in list(last_web_rooms(connection, connected, FIRST_WORKSPACE, ("owner",))):
                mark = f"release.notice:{run.claim.id}:{room.id}"
                submit(
                    connection,
                    workspace_id=FIRST_WORKSPACE,
                    kind=RELEASE_NOTICE,
                    lane=mark,
                    pool=SERVICE,
                    payload={**payload, "room": room.id},
                    unique_key=mark,
                    conversation_id=room.conversation_id,
                    connection_id=room.connection_id,
                )

        await self.database.write(make)

    async def _wait_for_machine(self, run: Run) -> Outcome:
        """Leave a job to the machine that has the release; when that seems to be gone for good, tell the owners."""
        waited = await self.database.read(partial(_waited_for_machine, job_id=run.claim.id))
        if waited < OPEN_FOR:
            return Snooze(min(MAX_WAIT, max(FIRST_WAIT, waited * SHARE_OF_WAIT)), ELSEWHERE)
        told = {"build": run.claim.payload["build"], "kind": GONE}
        await self._tell_in_rooms(run, told)
        return Done(await self._notes(MACHINE_GONE.format(**told)), reason=GONE)

    async def _tell_with_way_back(self, given: GivenAnswer, text: str, facts: Mapping[str, str]) -> Outcome:
        if not given.asked or given.open:
            about = f"running {facts['build']}"
            return await self._ask_owners(text + CAN_GO_BACK.format(**facts), about, (KEEP, ROLL_BACK))
        if given.text != ROLL_BACK or self.home.linked(CURRENT) != facts["build"]:
            return Done()
        try:
            roll_back(self.home, by=given.by)
        except NotFound as error:
            return Dead("release.gone", detail=str(error))
        except Conflict:
            return Snooze(BUSY, "release.busy")
        return Done()


def _notice(payload: Mapping[str, Any]) -> str:
    """What owners are told, with places for what is known of it."""
    kind = str(payload["kind"])
    none_before = kind == "revision.rolled_back" and payload.get("to") == payload["build"]
    return MACHINE_GONE if kind == GONE else NONE_BEFORE if none_before else NOTICES[kind]


def _waited_for_machine(connection: Connection, job_id: int) -> float:
    """Seconds since the first try that left a job to another machine, of those after its last other try."""
    other = select(func.max(attempts.c.fence)).where(
        attempts.c.job_id == job_id, attempts.c.ended_at.is_not(None), attempts.c.reason != ELSEWHERE
    )
    last_other = connection.execute(other).scalar() or 0
    query = select(now() - func.min(attempts.c.ended_at)).where(
        attempts.c.job_id == job_id, attempts.c.reason == ELSEWHERE, attempts.c.fence > last_other
    )
    return float(connection.execute(query).scalar() or 0.0)
