"""`gofer memory`: what agents remember."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated, Any

import typer

from gofer.cli.client import call
from gofer.cli.exit_codes import USAGE, CommandFailed
from gofer.cli.input import read_text
from gofer.cli.output import Shown, ago, group, harmless, plain, table

MAX_IMPORT = 8 * 1024 * 1024
"""Bytes of a file to import."""

app = group("Memory: what agents remember.")


@app.command()
def rules(
    conversation: Annotated[str, typer.Argument(help="The conversation's id.", show_default=False)],
    revoke: Annotated[str, typer.Option(help="The id of a rule to revoke.")] = "",
    restore: Annotated[str, typer.Option(help="The id of a revoked rule to restore.")] = "",
) -> Shown:
    """Show a conversation's standing rules, or revoke one.

    Every run reads them word for word, however often its prompt is shortened.

    \b
    gofer memory rules conv_k3v9
    gofer memory rules conv_k3v9 --revoke mem_7f3k
    """
    if revoke and restore:
        raise CommandFailed("Give --revoke or --restore, not both.", USAGE)
    place = f"/conversations/{conversation}/rules"
    if revoke or restore:
        found = call("POST", f"{place}/{revoke or restore}/{'revoke' if revoke else 'restore'}")
    else:
        found = call("GET", place)
    rows = [
        (
            each["id"],
            "revoked" if each["revoked"] else "ended by /new" if each["ended"] else "in force",
            each["author"],
            each["message_seq"],
            each["text"],
        )
        for each in found["rules"]
    ]
    columns = ("rule", "state", "said by", "message", "text")
    return found, lambda: table(columns, rows, empty="No standing rules.")


Scope = Annotated[
    str, typer.Option("--scope", help="conversation:ID, person:ID (or person:me) or agent:NAME.")
]
Id = Annotated[str, typer.Argument(help="The memory's id.", show_default=False)]


def _rows(found: list[dict[str, Any]]) -> list[tuple[Any, ...]]:
    return [
        (
            each["id"],
            each["kind"],
            each["scope"].partition(":")[0],
            ago(each["at"]),
            each["author"],
            _words(each),
        )
        for each in found
    ]


def _words(memory: dict[str, Any]) -> str:
    return (
        str(memory["gist"]) if memory["state"] == "live" else f"({_state(memory)}) {memory['gist']}".strip()
    )


def _state(memory: dict[str, Any]) -> str:
    by = f" by {memory['superseded_by']}" if memory["superseded_by"] else ""
    return f"{memory['state']}{by}"


@app.command()
def search(
    query: Annotated[
        str, typer.Argument(help="Words, any of which may match. Without any: the newest notes.")
    ] = "",
    scope: Scope = "",
    kind: Annotated[str, typer.Option(help="turn, result, plan, summary, note or rule.")] = "",
    limit: Annotated[int, typer.Option(help="How many at most.")] = 20,
) -> Shown:
    """Search what is remembered, or list what was noted.

    \b
    gofer memory search 'name of the boat'
    gofer memory search --scope agent:gofer
    """
    found = call("GET", "/memories", params={"query": query, "scope": scope, "kind": kind, "limit": limit})

    def shown() -> None:
        columns = ("memory", "kind", "audience", "when", "who", "what")
        table(columns, _rows(found["memories"]), empty="Nothing is remembered that fits.")
        for problem in found["problems"]:
            print(harmless(problem))

    return found, shown


@app.command("show")
def show_one(memory: Id) -> Shown:
    """Show a memory: its words, where they come from, and its versions.

    \b
    gofer memory show mem_7f3k
    """
    found = call("GET", f"/memories/{memory or '-'}")

    def shown() -> None:
        print(f"{found['id']}, {found['kind']} for {found['scope']}, {_state(found)}")
        if found["conversation_id"]:
            gone = " (purged)" if found["source_gone"] else ""
            print(f"from {found['conversation_id']}, message {found['message_seq'] or '–'}{gone}")
        if found["job_id"]:
            print(f"from run {found['job_id']}")
        for each in found["versions"]:
            print(f"\n{_version(each)}")
            changed = each["diff"] if each["version"] > 1 and each["text"] else ""
            print(harmless(changed or each["text"] or each["gist"]))
        if found["state"] == "superseded":
            print(f"\nBring it back: gofer memory restore {found['id']}")

    return found, shown


def _version(version: dict[str, Any]) -> str:
    forgotten = version["state"] == "forgotten"
    who = version["author"] or ("" if forgotten else version["trust"])
    state = "replaced" if version["until"] and version["state"] == "live" else _state(version)
    return f"version {version['version']}, {ago(version['at'])}{', ' * bool(who)}{harmless(who)}: {state}"


@app.command()
def add(
    text: Annotated[str, typer.Argument(help="What to remember.", show_default=False)], scope: Scope = ""
) -> Shown:
    """Remember something.

    \b
    gofer memory add 'We close at six' --scope agent:gofer
    """
    if not scope:
        raise CommandFailed("Say for whom: --scope agent:NAME, person:ID or conversation:ID.", USAGE)
    made = call("POST", "/memories", json={"scope": scope, "text": text})
    return made, f"Remembered as {made['id']}."


@app.command()
def edit(
    memory: Id,
    text: Annotated[str, typer.Option(help="Other words.")] = "",
    pin: Annotated[
        bool | None, typer.Option("--pin/--unpin", help="Make it a standing rule, or a note again.")
    ] = None,
    scope: Annotated[str, typer.Option("--scope", help="Another audience.")] = "",
) -> Shown:
    """Change a memory: its words, whether it is a standing rule, or its audience.

    \b
    gofer memory edit mem_7f3k --text 'We close at seven'
    """
    wish: dict[str, Any] = {}
    wish |= {"text": text} if text else {}
    wish |= {"pinned": pin} if pin is not None else {}
    wish |= {"scope": scope} if scope else {}
    if not wish:
        raise CommandFailed("Say what to change: --text, --pin, --unpin or --scope.", USAGE)
    made = call("PATCH", f"/memories/{memory}", json=wish)
    return made, f"Changed: {made['id']}, version {made['version']}."


@app.command()
def forget(memory: Id) -> Shown:
    """Forget something. It can be restored.

    \b
    gofer memory forget mem_7f3k
    """
    gone = call("POST", f"/memories/{memory}/forget")
    return gone, f"Forgotten. Bring it back: gofer memory restore {memory}"


@app.command()
def restore(memory: Id) -> Shown:
    """Bring back something that was forgotten.

    \b
    gofer memory restore mem_7f3k
    """
    found = call("POST", f"/memories/{memory}/restore")
    return found, f"Restored: {plain(found['gist'])}"


@app.command()
def export(scope: Scope = "") -> Shown:
    """Write what was noted as JSON lines, for `gofer memory import`.

    \b
    gofer memory export --scope agent:gofer > notes.jsonl
    """
    found = call("GET", "/memories/export", params={"scope": scope})
    if unread := sum(each["state"] == "unreadable" for each in found["memories"]):
        told = f"{unread} memories cannot be read and are written without their words. Run: gofer doctor"
        print(told, file=sys.stderr)
    return found, "\n".join(json.dumps(each) for each in found["memories"])


@app.command("import")
def import_file(
    file: Annotated[
        str, typer.Argument(help="JSON lines, NDJSON or a MEMORY.md; - for stdin.", show_default=False)
    ],
    scope: Annotated[
        str,
        typer.Option("--scope", help="conversation:ID, person:ID or agent:NAME; else what each line says."),
    ] = "",
    publish: Annotated[
        int, typer.Option(min=0, help="How many private memories of the file may get that scope.")
    ] = 0,
    place: Annotated[
        list[str] | None,
        typer.Option(help="Which audience here replaces one of the file: SCOPE=SCOPE. Repeatable."),
    ] = None,
    leave_out: Annotated[
        bool, typer.Option("--leave-out", help="Leave out memories for audiences that do not exist here.")
    ] = False,
) -> Shown:
    """Import notes: an export, an archive index as NDJSON, or another agent's MEMORY.md.

    Importing a file twice adds nothing. Each line of an export keeps its audience, also on another instance: agents
    are known by their name, people by their accounts. For others give --place. --scope gives all of
    it to one audience, and --publish says how many private memories may be among it.

    \b
    gofer memory import notes.jsonl
    gofer memory import notes.jsonl --place person:person_k3v9=person:me
    gofer memory import MEMORY.md --scope person:person_k3v9
    """
    text = read_text(file, MAX_IMPORT)
    if not text.strip():
        raise CommandFailed("There is nothing to import in this file.")
    form = "markdown" if Path(file).suffix.lower() in (".md", ".markdown") else "jsonl"
    form = "" if file == "-" else form
    places = dict(_place(each) for each in place or ())
    wish = {"scope": scope, "format": form, "text": text, "publish": publish}
    wish |= {"place": places, "leave_out": leave_out}
    done = call("POST", "/memories/import", json=wish)

    def shown() -> None:
        whom = f"for {done['scope']}" if done["scope"] else "each for whom it was"
        again = f"; {done['known']} of them were here before" if done["known"] else ""
        print(f"{done['imported']} memories are kept, {whom}{again}.")
        if done["forgotten"]:
            print(
                f"{done['forgotten']} more were forgotten here and stay so. Bring one back: gofer memory restore ID"
            )
        for there, here in done["placed"].items():
            print(f"What is for {there} in the file is for {here} here.")
        if done["left_out"]:
            print(
                f"{done['left_out']} are left out: unreadable in the file, or for audiences that are not here."
            )

    return done, shown


def _place(given: str) -> tuple[str, str]:
    there, equals, here = given.partition("=")
    if not (there and equals and here):
        raise CommandFailed(f"--place {given!r}: say SCOPE=SCOPE, the file's and then the one here.", USAGE)
    return there, here


@app.command()
def reindex(scope: Scope = "") -> Shown:
    """Rebuild the index of a scope, or of all scopes, under a new key. It is filled in the background.

    \b
    gofer memory reindex
    """
    begun = call("POST", "/memories/reindex", json={"scope": scope})
    still = len(begun["degraded"])
    told = f"\n{still} audiences still cannot be read. Run: gofer doctor" if still else ""
    return begun, f"{begun['scopes']} indexes are being rebuilt.{told}"
