"""A goal on a bench: its driver is taken pass by pass, and its tasks end as a test says."""

from __future__ import annotations

from functools import partial
from typing import Any

from sqlalchemy import select

from gofer.goals import records, tasks
from gofer.goals.driver import Ask, GoalEnd, Pass, Pause, Rules, Step, WaitForTasks, advance
from gofer.jobs import control
from gofer.jobs.outcome import Done, Outcome, Snooze, Wait, WaitForJobs
from gofer.jobs.queue import PLANNER, SERVICE, WORKER, Claim
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import agents, bindings, goals, participants, questions
from gofer.store.tables import tasks as task_rows
from support.world import CONNECTION, World


def plan(
    *needs: list[int],
    keep: tuple[int, ...] = (),
    without: tuple[int, ...] = (),
    replaces: tuple[int, ...] = (),
    kind: str = "research",
) -> dict[str, Any]:
    """What a planner submits: one task for each list of needs."""
    same = {"kind": kind, "replaces": list(replaces)}
    made = [
        {"title": f"step {number}", "instructions": f"do {number}", "needs": of, **same}
        for number, of in enumerate(needs, 1)
    ]
    return {"reply": "On it.", "tasks": made, "keep": list(keep), "without": list(without), "remember": []}


class Bench:
    """One goal of one conversation."""

    def __init__(self, world: World, goal_id: str, rules: Rules) -> None:
        self.world, self.goal_id, self.rules = world, goal_id, rules

    @classmethod
    async def made(
        cls, world: World, text: str = "tidy the cellar", parallel: int = 2, **values: Any
    ) -> Bench:
        await world.say("hello", room="kitchen", by="ann", addressed=False)
        (place,) = await world.rows(select(bindings).where(bindings.c.ref == "kitchen"))
        return cls(world, await new_goal(world, place.conversation_id, text, **values), Rules(parallel))

    async def row(self) -> Any:
        return (await self.world.rows(select(goals).where(goals.c.id == self.goal_id)))[0]

    async def states(self) -> list[str]:
        """The states of the tasks that people see."""
        query = select(task_rows.c.state).where(task_rows.c.goal_id == self.goal_id, task_rows.c.number > 0)
        return [state for (state,) in await self.world.rows(query.order_by(task_rows.c.number))]

    async def go(self) -> Step:
        """One pass of the driver, to its end."""
        claim = await self.world.claim_one(pool=SERVICE)
        assert claim.kind == "goal", claim.kind
        this, step = await self.world.run(
            partial(advance, vault=self.world.vault, claim=claim, rules=self.rules)
        )
        await self.world.end(claim, _outcome(this, step))
        found: Step = step
        return found

    async def idle(self) -> bool:
        """Whether the driver has nothing to do now."""
        return (await self.world.job((await self.row()).job_id)).state not in ("ready", "running")

    async def end_task(
        self, result: dict[str, Any], state: str = "done", pools: tuple[str, ...] = (WORKER, PLANNER)
    ) -> Any:
        """The next task that is ready ends like this; returns its row."""
        claim = await self._claim_from(pools)
        task_id = claim.payload["task"]
        await self.world.run(partial(tasks.begin_task, task_id=task_id))
        finish = partial(
            tasks.finish_task, task_id=task_id, state=state, result=result, vault=self.world.vault
        )
        await self.world.run(finish)
        await self.world.end(claim, Done())
        return (await self.world.rows(select(task_rows).where(task_rows.c.id == task_id)))[0]

    async def _claim_from(self, pools: tuple[str, ...]) -> Claim:
        for pool in pools:
            for claim in await self.world.claim(1, pool=pool):
                return claim
        raise AssertionError("no task is ready")

    async def planned(self, *needs: list[int], **values: Any) -> Step:
        """The planner submits a plan, and the driver takes it."""
        await self.end_task({"outcome": "done", "plan": plan(*needs, **values)}, pools=(PLANNER,))
        return await self.go()

    async def reply(self, text: str) -> None:
        """Somebody answers the goal's question."""
        job_id = (await self.row()).job_id
        open_one = select(questions.c.id).where(
            questions.c.job_id == job_id, questions.c.answered_at.is_(None)
        )
        ((question,),) = await self.world.rows(open_one)
        await self.world.run(
            lambda c: control.answer(c, self.world.vault, question, text, by="ann", name="Ann", trust="owner")
        )

    async def tell(self, text: str, by: str = "ann", trust: str = "owner") -> str:
        told: str = await self.world.run(
            lambda c: records.tell(c, self.world.vault, self.goal_id, text, by=by, name=by, trust=trust)
        )
        return told

    async def told_to_planner(self) -> str:
        """What the last run of the planner was asked."""
        return await self.told_to("plan")

    async def told_to(self, kind: str) -> str:
        """What the last task of a kind was asked."""
        found: list[tasks.TaskRecord] = await self.world.run(
            partial(tasks.tasks_of_goal, vault=self.world.vault, goal_id=self.goal_id)
        )
        return [task.instructions for task in found if task.kind == kind][-1]


async def new_goal(world: World, conversation_id: str, text: str = "tidy", **values: Any) -> str:
    """A goal, as the command makes it."""
    (agent,) = await world.rows(select(participants.c.agent_id, participants.c.id).limit(1)) or [(None, None)]
    given = {
        "workspace_id": FIRST_WORKSPACE,
        "conversation_id": conversation_id,
        "connection_id": CONNECTION,
        "agent_id": agent[0] if agent[0] else await _first_agent(world),
        "participant_id": agent[1] or "part_none",
        "asked_by": "ann",
        "trust": "owner",
        **{name: value for name, value in values.items() if name not in ("asked", "most")},
    }
    asked = records.GoalRequest(text, "Ann", "m1", **values.get("asked", {}))
    made = partial(
        records.create_goal,
        vault=world.vault,
        new=records.NewGoal(asked, **given),
        most=values.get("most", 32),
    )
    return str(await world.run(made))


async def _first_agent(world: World) -> str:
    return str((await world.rows(select(agents.c.id).limit(1)))[0][0])


def _outcome(this: Pass, step: Step) -> Outcome:
    match step:
        case WaitForTasks(job_ids):
            return WaitForJobs(waits_for=job_ids, any=True)
        case Ask(text, about, choices):
            return Wait(text, about, this.goal.asked_by, choices=choices)
        case Pause(seconds):
            return Snooze(seconds, "goal.paused")
        case GoalEnd():
            return Done()
