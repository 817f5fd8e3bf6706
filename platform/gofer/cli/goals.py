"""`gofer goals`: what agents work on in several steps."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gofer.cli.client import call
from gofer.cli.output import Shown, ago, group, plain, table

app = group("Goals: larger things that are planned, done and reported.")
Id = Annotated[str, typer.Argument(help="The goal's id.", show_default=False)]


@app.command("list")
def list_all(
    state: Annotated[
        str, typer.Option(help="planning, active, blocked, paused, done, failed or cancelled.")
    ] = "",
    conversation: Annotated[str, typer.Option(help="Only those of one conversation, by its id.")] = "",
    limit: Annotated[int, typer.Option(help="How many at most.")] = 50,
) -> Shown:
    """List goals, the newest first.

    \b
    gofer goals list
    gofer goals list --state blocked
    """
    asked = {"state": state, "conversation": conversation, "limit": limit}
    found = call("GET", "/goals", params=asked)
    rows = [
        (
            each["id"],
            each["state"],
            f"{each['tasks_done']}/{each['task_count']}",
            f"${each['spent']:.4f}",
            ago(each["created_at"]),
            (plain(" ".join(each["text"].split()))[:60] or "(purged)"),
        )
        for each in found["goals"]
    ]
    columns = ("goal", "state", "tasks", "cost", "asked", "what")
    return found, lambda: table(columns, rows, empty="No goals. Make one: gofer goals add 'what you want'")


@app.command("show")
def show_one(goal: Id) -> Shown:
    """Show a goal with its tasks.

    \b
    gofer goals show goal_k3v9
    """
    found = call("GET", f"/goals/{goal}")

    def shown() -> None:
        why = f" ({found['reason']})" if found["reason"] else ""
        print(
            f"{found['id']}, {found['state']}{why}, ${found['spent']:.4f}, asked by {plain(found['asked_by'])}"
        )
        print(plain(found["text"]))
        if found["until"] is not None and found["finished_at"] is None:
            print(f"Its time is over {ago(found['until'])}.")
        rows = [
            (each["number"] or "–", each["kind"], each["state"], each["job_id"] or "–", _what(each))
            for each in found["tasks"]
        ]
        print()
        table(("task", "kind", "state", "job", "what"), rows, empty="No plan yet.")

    return found, shown


@app.command()
def add(
    text: Annotated[str, typer.Argument(help="What is wanted.", show_default=False)],
    conversation: Annotated[
        str, typer.Option(help="A conversation of yours in the web chat. By default a new one.")
    ] = "",
    agent: Annotated[str, typer.Option(help="The agent that should do it.")] = "",
    dollars: Annotated[float | None, typer.Option(help="What it may cost before it asks.")] = None,
    hours: Annotated[
        float | None, typer.Option(help="How long it may take. Then it ends with what is done.")
    ] = None,
    approval: Annotated[bool | None, typer.Option(help="Whether an owner must approve the plan.")] = None,
) -> Shown:
    """Ask for a goal: something larger that is planned, done and reported.

    \b
    gofer goals add 'Compare the three printers and order the best one'
    """
    wish: dict[str, Any] = {"text": text, "conversation": conversation, "agent": agent}
    wish |= {} if dollars is None else {"dollars": dollars}
    wish |= {} if hours is None else {"hours": hours}
    wish |= {} if approval is None else {"approval": approval}
    made = call("POST", "/goals", json=wish)
    return made, f"Made {made['id']}. See how far it is: gofer goals show {made['id']}"


@app.command()
def pause(goal: Id) -> Shown:
    """Pause a goal: no further task begins, and running tasks go on to their end.

    \b
    gofer goals pause goal_k3v9
    """
    return _steer(goal, "pause")


@app.command()
def resume(goal: Id) -> Shown:
    """Go on with a goal that was paused.

    \b
    gofer goals resume goal_k3v9
    """
    return _steer(goal, "resume")


@app.command()
def cancel(goal: Id) -> Shown:
    """Cancel a goal. Its running tasks are stopped at once.

    \b
    gofer goals cancel goal_k3v9
    """
    return _steer(goal, "cancel")


@app.command()
def tell(
    goal: Id,
    text: Annotated[
        str, typer.Argument(help="An answer to its question, or something new.", show_default=False)
    ],
) -> Shown:
    """Say something about a goal: its planner takes it into account.

    \b
    gofer goals tell goal_k3v9 'not the red one'
    """
    told = call("POST", f"/goals/{goal}/messages", json={"text": text})
    words = {"answered": "That answers its question.", "told": "Noted: the plan is looked at again."}
    return told, words.get(told["state"], told["state"])


def _steer(goal: str, verb: str) -> Shown:
    done = call("POST", f"/goals/{goal}/{verb}")
    return done, f"{goal} is {done['state']}."


def _what(task: dict[str, Any]) -> str:
    more = (
        task["summary"]
        or task["question"]
        or (task["reason"] if task["state"] in ("failed", "dropped") else "")
    )
    return plain(f"{task['title']}: {' '.join(more.split())[:100]}" if more else task["title"])
