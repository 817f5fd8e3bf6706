"""`gofer questions`: what runs have asked people."""

from __future__ import annotations

import shlex
from typing import Annotated, Any

import typer

from gofer.cli.client import call
from gofer.cli.exit_codes import CommandFailed
from gofer.cli.output import Shown, ago, group, plain, table

MAX_SHOWN = 200

app = group("Questions that runs have asked people.")


@app.command("list")
def list_questions(
    everything: Annotated[
        bool, typer.Option("--all", help="Also list those that are answered or expired.")
    ] = False,
) -> Shown:
    """List open questions.

    \b
    gofer questions list
    """
    from gofer.sanitize import plain_text

    found = call("GET", "/questions", params={"all": everything})
    rows = [
        (
            each["id"],
            each["goal_id"] or each["job_id"],
            _shortened(plain_text(each["question"])),
            {"role:owner": "owners", "role:member": "members"}.get(each["asked_of"], each["asked_of"]),
            ago(each["asked_at"]),
            ago(each["expires_at"]),
        )
        for each in found["questions"]
    ]
    columns = ("question", "run or goal", "asks", "of", "asked", "expires")
    return found, lambda: table(columns, rows, empty="No questions.")


def _shortened(text: str) -> str:
    return text[:MAX_SHOWN] + (" …" if len(text) > MAX_SHOWN else "")


@app.command("show")
def show_question(id: Annotated[str, typer.Argument(help="The question's id.", show_default=False)]) -> Shown:
    """Show an open question in full, such as the change that an agent proposes.

    \b
    gofer questions show q_k3v9
    """
    found = [each for each in call("GET", "/questions")["questions"] if each["id"] == id]
    if not found:
        raise CommandFailed(f"There is no open question {id}. `gofer questions list` shows those there are.")
    return found[0], lambda: _print_question(found[0])


def _print_question(question: dict[str, Any]) -> None:
    from gofer.sanitize import plain_text

    for line in plain_text(question["question"]).splitlines():
        print(plain(line) if line.strip() else "")
    for choice in question["choices"]:
        print(f"  gofer questions answer {question['id']} {shlex.quote(plain(choice))}")


@app.command()
def answer(
    id: Annotated[str, typer.Argument(help="The question's id.", show_default=False)],
    text: Annotated[str, typer.Argument(help="Your answer.", show_default=False)],
) -> Shown:
    """Answer a question, so that its job goes on.

    \b
    gofer questions answer q_k3v9 yes
    """
    done = call("POST", f"/questions/{id}/answer", json={"text": text})
    return done, f"Answered; job {done['job_id']} goes on."
