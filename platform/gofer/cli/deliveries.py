"""`gofer deliveries` and `gofer replay`: what came in, and taking it in again."""

from __future__ import annotations

import base64
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gofer.cli.client import call
from gofer.cli.exit_codes import USAGE, CommandFailed
from gofer.cli.output import AsJson, Shown, ago, facts, group, show, table

app = group("Deliveries: the requests that came in.")

Id = Annotated[int, typer.Argument(help="The delivery's number.", show_default=False)]
Again = Annotated[bool, typer.Option("--again", help="Treat it as new although it came before.")]


@app.command("list")
def list_deliveries(
    connection: Annotated[str, typer.Option(help="Only of this connection.")] = "",
    limit: Annotated[int, typer.Option(help="How many to list at most.")] = 50,
) -> Shown:
    """List deliveries, the newest first.

    \b
    gofer deliveries list --connection hello_k3v9
    """
    asked = {"connection": connection} if connection else {}
    found = call("GET", "/deliveries", params={**asked, "limit": limit})
    rows = [
        (
            each["id"],
            each["connection_id"],
            each["event"],
            each["source"],
            each["conversation_id"],
            each["note"],
            ago(each["received_at"]),
        )
        for each in found["deliveries"]
    ]
    columns = ("delivery", "connection", "event", "via", "conversation", "note", "came")
    return found, lambda: table(columns, rows, empty="No deliveries.")


@app.command("show")
def show_delivery(
    id: Id,
    raw: Annotated[bool, typer.Option("--raw", help="Print headers and body as a file for replay.")] = False,
    as_json: AsJson = False,
) -> None:
    """Show a delivery with its headers and body, secrets masked.

    \b
    gofer deliveries show 7
    gofer deliveries show 7 --raw > captured.http
    """
    found = call("GET", f"/deliveries/{id}")
    if raw:
        if found["body"] is None:
            raise CommandFailed(f"The content of delivery {id} is not kept.", 3)
        print(_captured(found), end="")
        return
    show(found, as_json, lambda: _print_one(found))


def _captured(found: dict[str, Any]) -> str:
    head = "".join(f"{name}: {value}\n" for name, value in found["headers"])
    return f"{head}\n{found['body']}"


def _print_one(found: dict[str, Any]) -> None:
    delivery = found["delivery"]
    facts([*({**delivery, "received_at": ago(delivery["received_at"])}).items()])
    print()
    facts([*found["headers"], ("body", found["body"])])


@app.command("replay")
def replay_stored(id: Id, again: Again = False) -> Shown:
    """Process a stored delivery again. If its job is dead, that job runs again.

    \b
    gofer deliveries replay 7
    gofer deliveries replay 7 --again
    """
    return _taken(call("POST", f"/deliveries/{id}/replay", json={"again": again}))


def replay(
    what: Annotated[str, typer.Argument(help="A captured file, or a delivery's number.", show_default=False)],
    to: Annotated[str, typer.Option(help="The connection that receives it; required with a file.")] = "",
    header: Annotated[
        list[str] | None,
        typer.Option("--header", "-H", metavar="NAME: VALUE", help="A header to add. Repeatable."),
    ] = None,
    again: Again = False,
) -> Shown:
    """Process a captured payload as if it had come in, without checking its signature.

    The file holds a body alone (beginning with { or [), or header lines, an empty line and a body.

    \b
    gofer replay captured.http --to hello_k3v9
    gofer replay issue_comment.json --to github_x8w2 -H 'x-github-event: issue_comment'
    gofer replay 7
    """
    if what.isdigit() and not Path(what).exists():
        return _taken(call("POST", f"/deliveries/{what}/replay", json={"again": again}))
    if not to and (what == "-" or Path(what).is_file()):
        raise CommandFailed("Say which connection takes it in: --to CONNECTION.", USAGE)
    headers, body = _read(what)
    asked = {
        "headers": [*headers, *(_header(line) for line in header or ())],
        "body": base64.b64encode(body).decode(),
        "again": again,
    }
    return _taken(call("POST", f"/connections/{to}/replay", json=asked))


def _read(path: str) -> tuple[list[tuple[str, str]], bytes]:
    try:
        content = sys.stdin.buffer.read() if path == "-" else Path(path).read_bytes()
    except FileNotFoundError:
        raise CommandFailed(f"There is no file {path}.", USAGE) from None
    except OSError as error:
        raise CommandFailed(f"{path} cannot be read: {error.strerror}.", USAGE) from None
    if content.lstrip()[:1] in (b"{", b"["):
        return [], content
    head, _, body = content.replace(b"\r\n", b"\n", 64).partition(b"\n\n")
    return [_header(line) for line in head.decode("latin-1").splitlines()], body


def _header(line: str) -> tuple[str, str]:
    name, colon, value = line.partition(":")
    if not colon or not name.strip():
        raise CommandFailed(f"{line[:60]!r} is not a header; write name: value.", USAGE)
    return name.strip().lower(), value.strip()


MEANINGS = {
    "accepted": "Taken in as delivery {delivery_id}.",
    "repeat": "It came before (delivery {delivery_id}), so nothing was done. Add --again to take it in as new.",
    "redriven": "It came before and its job had died; that job runs again.",
    "noted": "Kept as delivery {delivery_id}; it is no message, so there is nothing to answer.",
}


def _taken(taken: dict[str, Any]) -> Shown:
    return taken, MEANINGS[taken["result"]].format(**taken)
