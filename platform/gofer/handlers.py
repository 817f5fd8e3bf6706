"""What a worker does with a job: the handler of every kind, put together from the parts of the platform.

The worker looks a job's kind up in this table. Nothing else connects the job engine with the packages that do the work.
"""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from sqlalchemy import Connection

from gofer.commands.handler import CommandHandler
from gofer.connections.inflow import CATCH_UP, POLL, SET_UP
from gofer.devices import DeviceQuestions
from gofer.goals.handler import GoalDriver, goal_apology
from gofer.goals.requests import GoalTools
from gofer.goals.tasks import TaskDelegator
from gofer.goals.worker_runs import WorkerRuns
from gofer.heartbeat.nudges import Nudges
from gofer.heartbeat.runs import HeartbeatRuns
from gofer.intake.admit import Admitter, StrangerLimit
from gofer.intake.polling import Poller
from gofer.intake.scheduled_messages import ScheduledSender
from gofer.intake.unknown_senders import Approvals
from gofer.jobs.kinds import (
    ANSWER,
    APPROVAL,
    DELIVER,
    DEVICE,
    GOAL,
    HEARTBEAT,
    NUDGE,
    POST,
    PROPOSAL,
    RECEPTION,
    RELEASE_BUILD,
    RELEASE_NOTICE,
    RELEASE_QUESTION,
    SAY,
    TASK,
)
from gofer.jobs.notifications import EVENTS, Signals
from gofer.jobs.outcome import Draft, Outcome
from gofer.jobs.queue import AGENT, PLANNER, SERVICE, WORKER, Claim, TaskBounds
from gofer.jobs.worker import Capacity, Handler, Run, Worker
from gofer.live import Live
from gofer.memory.manager import MEMORY
from gofer.outbox.deliver import Outbox
from gofer.outbox.progress import ProgressUpdater
from gofer.runs.agent_files import AgentFiles, AgentSpec
from gofer.runs.answer import Answerer, RunObserver, apology
from gofer.runs.memory_manager import MemoryManager
from gofer.runs.model_keys import ModelKeys
from gofer.runs.posts import Poster
from gofer.runs.proposals import Proposals
from gofer.runs.shell_access import Loans
from gofer.runs.shells import Shells
from gofer.runs.spend import charge
from gofer.runtimes.callback import CallbackSender
from gofer.runtimes.triggers import Triggers
from gofer.store.messages import StoredMessage
from gofer.tool import Tool

if TYPE_CHECKING:
    from gofer.app import Platform

SERVICE_SLOTS = 64
"""Slots for sending and polling: their own, so that long runs never keep a finished answer waiting."""
PLANNER_SLOTS = 2
"""Plans and reports of goals that one process has written at once: they wait neither for workers nor for answers."""


def make_worker(platform: Platform, shells: Shells, progress: ProgressUpdater, loans: Loans) -> Worker:
    """A worker with a handler for every kind of job."""
    settings, database, vault = platform.settings, platform.database, platform.vault
    admitter = Admitter(
        charge=partial(charge, timezone=settings.timezone),
        database=database,
        vault=vault,
        accounts=platform.accounts,
        redactor=platform.redactor,
        strangers=StrangerLimit(settings.max_from_stranger),
        noticed=progress.noticed,
    )
    keys = ModelKeys(settings=settings, database=database, vault=vault, http=platform.http)
    observer = Observers(platform.live, platform.signals, progress)
    return Worker(
        owner=platform.owner,
        database=database,
        vault=vault,
        signals=platform.signals,
        handlers={
            **_run_handlers(platform, admitter, keys, shells, loans, observer),
            **_conversation_handlers(platform, admitter, keys, progress),
            **_service_handlers(platform),
        },
        apology=_apology,
        capacity=Capacity(
            slots={
                AGENT: settings.slots,
                SERVICE: SERVICE_SLOTS,
                PLANNER: PLANNER_SLOTS,
                WORKER: settings.worker_slots,
            },
            tasks=TaskBounds(settings.max_tasks, settings.agent_tasks),
            lease=settings.lease,
            poll_interval=settings.poll_interval,
            stop_within=settings.stop_within,
            max_running=settings.max_running,
            keep_finished=settings.keep_finished,
        ),
    )


def _run_handlers(
    platform: Platform,
    admitter: Admitter,
    keys: ModelKeys,
    shells: Shells,
    loans: Loans,
    observer: Observers,
) -> dict[str, Handler]:
    """The handlers of jobs in which a model thinks."""
    settings, database, vault = platform.settings, platform.database, platform.vault
    agents = AgentFiles.of(settings)
    answerer = Answerer(
        settings=settings,
        database=database,
        vault=vault,
        accounts=platform.accounts,
        admitter=admitter,
        redactor=platform.redactor,
        shells=shells,
        loans=loans,
        keys=keys,
        uses=platform.uses,
        agents=agents,
        servers=platform.servers_for_run,
        observer=observer,
        recall=platform.recall,
        self_update=partial(_self_update_tools, platform),
        delegator=TaskDelegator(database, vault, settings.task_queue) if settings.workers_v1 else None,
        goal_tools=GoalTools(database, vault, settings, platform.signals).of_run,
        external=_external_agents(platform),
    )
    workers = WorkerRuns(settings=settings, database=database, vault=vault, answerer=answerer)
    heartbeats = HeartbeatRuns(
        settings=settings,
        database=database,
        vault=vault,
        redactor=platform.redactor,
        keys=keys,
        agents=agents,
        recall=platform.recall,
    )
    manager = MemoryManager(settings=settings, database=database, vault=vault, keys=keys, agents=agents)
    return {
        ANSWER: answerer.handle,
        TASK: workers.handle,
        HEARTBEAT: heartbeats.handle,
        MEMORY: manager.handle,
    }


def _conversation_handlers(
    platform: Platform, admitter: Admitter, keys: ModelKeys, progress: ProgressUpdater
) -> dict[str, Handler]:
    """The handlers of jobs in which the platform itself writes to a conversation."""
    settings, database, vault = platform.settings, platform.database, platform.vault
    accounts, signals, redactor = platform.accounts, platform.signals, platform.redactor
    agents = AgentFiles.of(settings)
    commands = CommandHandler(
        settings=settings,
        database=database,
        vault=vault,
        accounts=accounts,
        admitter=admitter,
        signals=signals,
        keys=keys,
        recall=platform.recall,
    )
    driver = GoalDriver(
        settings=settings,
        database=database,
        vault=vault,
        accounts=accounts,
        redactor=redactor,
        signals=signals,
        agents=agents,
        show=progress.goal_changed,
    )
    proposals = Proposals(
        database=database, vault=vault, accounts=accounts, directory=settings.data_dir / "agents"
    )
    nudges = Nudges(
        database=database, vault=vault, accounts=accounts, agents=agents, signals=signals, settings=settings
    )
    posts = Poster(database=database, vault=vault, accounts=accounts, redactor=redactor, agents=agents)
    scheduled = ScheduledSender(database=database, vault=vault, redactor=redactor, signals=signals)
    return {
        RECEPTION: commands.handle,
        APPROVAL: Approvals(database=database, vault=vault, accounts=accounts).handle,
        DEVICE: DeviceQuestions(database, vault, accounts).handle,
        SAY: scheduled.handle,
        PROPOSAL: proposals.handle,
        GOAL: driver.handle,
        POST: posts.handle,
        NUDGE: nudges.handle,
        RELEASE_QUESTION: partial(_handle_release, platform, "ask"),
        RELEASE_NOTICE: partial(_handle_release, platform, "tell"),
    }


def _service_handlers(platform: Platform) -> dict[str, Handler]:
    """The handlers of jobs that talk to a service, and of the one that builds a release."""
    settings, database = platform.settings, platform.database
    outbox = Outbox(
        database=database,
        vault=platform.vault,
        accounts=platform.accounts,
        redactor=platform.redactor,
        # A service may still carry out a request after we stopped waiting for it, or died right after sending it.
        late_write_within=2 * settings.request_timeout,
        public_url=settings.public_url,
    )
    poller = Poller(database=database, accounts=platform.accounts, intake=platform.intake)
    return {
        DELIVER: outbox.handle,
        POLL: poller.poll,
        CATCH_UP: poller.catch_up,
        SET_UP: poller.set_up,
        RELEASE_BUILD: partial(_build_release, platform),
    }


async def _handle_release(platform: Platform, verb: str, run: Run) -> Outcome:
    """Ask or tell about a release: loaded when there is such a job, which most processes never see."""
    from gofer.releases.approval import ReleaseJobs
    from gofer.releases.lifecycle import open_home

    home = open_home(platform.settings)
    url = platform.settings.public_url.rstrip("/") or platform.url
    jobs = ReleaseJobs(platform.database, platform.vault, platform.accounts, home, url)
    return await (jobs.ask(run) if verb == "ask" else jobs.tell(run))


async def _build_release(platform: Platform, run: Run) -> Outcome:
    from gofer.releases.self_update import SelfUpdate

    return await SelfUpdate(platform.settings, platform.database, platform.vault).build(run)


def _self_update_tools(
    platform: Platform, claim: Claim, spec: AgentSpec, asker: StoredMessage
) -> list[Tool[Any]]:
    """Loaded for an agent that may change Gofer, which most may not."""
    from gofer.releases.self_update import SelfUpdate

    return SelfUpdate(platform.settings, platform.database, platform.vault).tools(claim, spec, asker)


def _external_agents(platform: Platform) -> Triggers:
    """Wakes the agents that somebody else runs."""
    settings, database = platform.settings, platform.database
    callbacks = CallbackSender(
        database=database,
        vault=platform.vault,
        redactor=platform.redactor,
        secret=platform.secret,
        timeout=settings.request_timeout,
    )
    return Triggers(
        settings=settings,
        database=database,
        agents=AgentFiles.of(settings),
        signals=platform.signals,
        callbacks=callbacks,
    )


def _apology(connection: Connection, claim: Claim, reason: str) -> tuple[Draft, ...]:
    """The words for a job that ends without an answer: a goal's, or an agent's."""
    return (goal_apology if claim.kind == GOAL else apology)(connection, claim, reason)


class Observers(RunObserver):
    """Tells of a run where people see it: progress in its chat, open pages, and followers of the event log."""

    def __init__(self, live: Live, signals: Signals, progress: ProgressUpdater) -> None:
        self._live = live
        self._signals = signals
        self._progress = progress

    def heard(self, claim: Claim, kind: str, data: dict[str, Any]) -> None:
        self._progress.heard(claim, kind, data)
        self._live.tell(str(claim.conversation_id), claim.id, kind, data)
        if not kind.endswith(".delta"):
            self._signals.wake(EVENTS)

    def ended(self, claim: Claim, outcome: Outcome | None) -> None:
        self._live.over(str(claim.conversation_id), claim.id)
        self._progress.ended(claim, outcome)
