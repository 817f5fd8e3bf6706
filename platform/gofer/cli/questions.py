"""`gofer questions`: what runs have asked people."""

from __future__ import annotations

from typing import Annotated

import typer

from gofer.cli.client import call
from gofer.cli.output import AsJson, ago, show, table

app = typer.Typer(help="Questions that runs have asked people.", no_args_is_help=True, rich_markup_mode=None)


@app.command("list")
def list_questions(
    everything: Annotated[
        bool, typer.Option("--all", help="Also list those that are answered or expired.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """List open questions.

    \b
    gofer questions list
    """
    found = call("GET", "/questions", params={"all": everything})
    rows = [
        (
            each["id"],
            each["job_id"],
            each["question"] + "".join(f"\n- {choice}" for choice in each["choices"]),
            {"role:owner": "owners", "role:member": "members"}.get(each["asked_of"], each["asked_of"]),
            ago(each["asked_at"]),
            ago(each["expires_at"]),
        )
        for each in found["questions"]
    ]
    columns = ("question", "job", "asks", "of", "asked", "expires")
    show(found, as_json, lambda: table(columns, rows, empty="No questions."))


@app.command()
def answer(
    id: Annotated[str, typer.Argument(help="The question's id.", show_default=False)],
    text: Annotated[str, typer.Argument(help="Your answer.", show_default=False)],
    as_json: AsJson = False,
) -> None:
    """Answer a question, so that its job goes on.

    \b
    gofer questions answer q_k3v9 yes
    """
    done = call("POST", f"/questions/{id}/answer", json={"text": text})
    show(done, as_json, lambda: print(f"Answered; job {done['job_id']} goes on."))
