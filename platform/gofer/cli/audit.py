"""`gofer audit`: the log of what people asked for, whether it is whole, and a copy of it to keep elsewhere."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gofer.cli.client import LONGEST_ANSWER, call
from gofer.cli.exit_codes import FAILED, CommandFailed
from gofer.cli.output import AsJson, Shown, ago, count, group, show, table

app = group("The audit log: who asked for which change.")


@app.command("list")
def list_entries(limit: Annotated[int, typer.Option(help="How many at most.", min=1, max=200)] = 50) -> Shown:
    """List entries, newest first.

    \b
    gofer audit list
    """
    found = call("GET", "/audit", params={"limit": limit})
    rows = [
        (
            ago(each["at"]),
            each["name"] or each["via"],
            each["action"],
            each["subject"],
            str(each["status"] or "?"),
        )
        for each in found["entries"]
    ]
    return found, lambda: table(("when", "who", "action", "of", "answer"), rows, empty="Nothing yet.")


@app.command()
def verify(
    since: Annotated[
        Path | None,
        typer.Option(
            help="A file of `gofer audit export`, which the log must still contain.", show_default=False
        ),
    ] = None,
    as_json: AsJson = False,
) -> None:
    """Check that nobody changed, removed or added entries of the log.

    \b
    gofer audit verify
    gofer audit verify --since audit.jsonl
    """
    seen = _head_of(since) if since is not None else {}
    found = call("GET", "/audit/verify", params=seen, timeout=LONGEST_ANSWER)
    if found["problems"]:
        show(found, as_json, lambda: print("\n".join(found["problems"])))
        raise CommandFailed("The audit log is not whole. If you know why: gofer audit accept", FAILED)
    where = f"It ends at {found['head']['link'][:16]}."
    show(
        found, as_json, lambda: print(f"The audit log is whole: {count(found['entries'], 'change')}. {where}")
    )


@app.command()
def export(
    file: Annotated[
        Path, typer.Argument(help="The file to write: one JSON object per line.", show_default=False)
    ],
) -> Shown:
    """Write the whole log to a file, and its signed head as the last line. Keep it where the server cannot write.

    \b
    gofer audit export audit.jsonl
    """
    lines, after = 0, 0
    with file.open("x") as out:
        while True:
            page = call("GET", "/audit/export", params={"after": after}, timeout=LONGEST_ANSWER)
            for entry in page["entries"]:
                out.write(json.dumps(entry) + "\n")
            lines += len(page["entries"])
            if not page["entries"]:
                break
            after = page["entries"][-1]["place"]
        out.write(json.dumps({"head": page["head"]}) + "\n")
    told = {"entries": lines, "head": page["head"]}
    return told, f"{file} has {count(lines, 'change')}. Check later: gofer audit verify --since {file}"


@app.command()
def accept() -> Shown:
    """Accept the log as it is now, after `gofer audit verify` has said what is wrong with it.

    \b
    gofer audit accept
    """
    done = call("POST", "/audit/accept", timeout=LONGEST_ANSWER)
    return done, f"Chained anew: {count(done['entries'], 'change')}."


def _head_of(file: Path) -> dict[str, Any]:
    try:
        head = json.loads(file.read_text().rstrip().rsplit("\n", 1)[-1])["head"]
        return {"place": int(head["place"]), "link": str(head["link"])}
    except (OSError, ValueError, KeyError, TypeError):
        raise CommandFailed(f"{file} is no export of the audit log.", FAILED) from None
