"""`gofer jobs`: what is to be done, is being done and was done."""

from __future__ import annotations

from typing import Annotated, Any

import typer

from gofer.cli.client import call
from gofer.cli.output import Shown, ago, facts, group, harmless, plain, table
from gofer.cli.runtimes import HOP, hop_row

app = group("Jobs: work that waits, runs or is done.")

ENDLESS = 1_000_000
"""As many tries as polling and setting up have: they go on for as long as their connection is there."""

Id = Annotated[int, typer.Argument(help="The job's number.", show_default=False)]


@app.command("list")
def list_jobs(
    state: Annotated[str, typer.Option(help="Only in these states, e.g. dead or ready,running.")] = "",
    kind: Annotated[str, typer.Option(help="Only of this kind, e.g. answer or deliver.")] = "",
    conversation: Annotated[str, typer.Option(help="Only of this conversation.")] = "",
    connection: Annotated[str, typer.Option(help="Only of this connection.")] = "",
    everything: Annotated[bool, typer.Option("--all", help="Also jobs that tidy memory.")] = False,
    limit: Annotated[int, typer.Option(help="How many to list at most.")] = 50,
) -> Shown:
    """List jobs, the newest first. Those that tidy memory are left out unless you ask for them.

    \b
    gofer jobs list
    gofer jobs list --state dead --json
    """
    asked = {"state": state, "kind": kind, "conversation": conversation, "connection": connection}
    tidying = {"tidying": True} if everything else {}
    found = call("GET", "/jobs", params={**_given(asked), "limit": limit, **tidying})
    return found, lambda: _print(found["jobs"])


def _given(asked: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in asked.items() if value}


def _print(jobs: list[dict[str, Any]]) -> None:
    table(
        ("job", "kind", "state", "tries", "reason", "conversation", "made"),
        [
            (
                job["id"],
                job["kind"],
                job["state"],
                _tries(job),
                job["reason"],
                job["conversation_id"],
                ago(job["created_at"]),
            )
            for job in jobs
        ],
        empty="No jobs.",
    )


def _tries(job: dict[str, Any]) -> str:
    most = job["max_attempts"]
    return f"{job['attempts']}/{most}" if most < ENDLESS else str(job["attempts"])


@app.command("show")
def show_job(id: Id) -> Shown:
    """Show a job with its attempts, events and replies.

    \b
    gofer jobs show 42
    """
    found = call("GET", f"/jobs/{id}")
    if found["kept"]:
        found["kept"] = call("GET", f"/jobs/{id}", params={"words": True})["kept"]
    return found, lambda: _print_one(found)


ATTEMPT = ("fence", "try", "worker", "began", "seconds", "outcome", "reason")
REPLY = ("part", "kind", "state", "tries", "at the service", "reason")


def _print_one(found: dict[str, Any]) -> None:
    job = found["job"]
    names = (
        "id",
        "kind",
        "state",
        "reason",
        "lane",
        "conversation_id",
        "connection_id",
        "agent_id",
        "payload",
    )
    facts([(name, job[name]) for name in names])
    print("\nAttempts")
    table(ATTEMPT, [_attempt(each) for each in found["attempts"]])
    if found["hops"]:
        print("\nHops")
        table(HOP, [hop_row(each) for each in found["hops"]])
    for each in found["kept"]:
        print(f"\nNot sent: it came {ago(each['created_at'])} for hop {each['hop']}, which was over")
        print(harmless(each["text"] or "(purged)"))
    print("\nEvents")
    for event in found["events"]:
        print(f"{event['seq']:>4}  {event['kind']:<22}  {plain(event['data'])}")
    if found["replies"]:
        print("\nReplies")
        table(REPLY, [_reply(each) for each in found["replies"]])


def _attempt(each: dict[str, Any]) -> tuple[Any, ...]:
    lasted = f"{each['ended_at'] - each['started_at']:.2f}" if each["ended_at"] else "-"
    began = ago(each["started_at"])
    outcome = each["outcome"] or "running"
    return each["fence"], each["number"], each["owner"], began, lasted, outcome, each["reason"]


def _reply(each: dict[str, Any]) -> tuple[Any, ...]:
    part = f"{each['part']}/{each['parts']}"
    return part, each["kind"], each["state"], each["tries"], each["external_id"], each["reason"]


@app.command()
def cancel(id: Id) -> Shown:
    """Ask a job to stop. A running one stops within two seconds.

    \b
    gofer jobs cancel 42
    """
    done = call("POST", f"/jobs/{id}/cancel")
    return done, f"Job {id} was asked to stop; it is {done['state']}."


@app.command()
def redrive(id: Id) -> Shown:
    """Run a dead or cancelled job again, with at least one more try.

    \b
    gofer jobs redrive 42
    """
    done = call("POST", f"/jobs/{id}/redrive")
    return done, f"Job {id} is {done['state']} again."
