"""What a run did, from its journal: a card for each tool call, and what the model said between them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from gofer.store.sealing import unseal
from gofer.vault.envelope import DataKey
from gofer.vault.redaction import Redactor

MOST_SHOWN = 20_000
"""Characters of one call's arguments or output on the page; the whole of it is in the run's own page."""


def steps_of(
    key: DataKey, job_id: int, rows: Iterable[dict[str, Any]], redactor: Redactor
) -> list[dict[str, Any]]:
    """The steps of one job, in order."""
    steps: list[dict[str, Any]] = []
    calls: dict[str, dict[str, Any]] = {}
    for row in rows:
        data = {**row["data"], **_words(key, job_id, row)}
        if row["kind"] == "turn.finished":
            made = list(_turn(job_id, row, data, redactor))
            steps += made
            calls |= {step["call"]: step for step in made if step["kind"] == "step"}
        elif row["kind"] == "turn.slow":
            steps.append(_slow(job_id, row))
        elif data["call_id"] in calls:
            done = row["kind"] == "tool.finished"
            calls[data["call_id"]].update(_finished(data, redactor) if done else {"status": "running"})
    return steps


SLOW = "The model takes long to begin. I go on as soon as it does."


def _slow(job_id: int, row: dict[str, Any]) -> dict[str, Any]:
    return {
        "id": f"slow-{row['id']}",
        "kind": "aside",
        "at": row["at"],
        "place": f"{row['at']:017.6f}.1.{row['id']:012d}.000",
        "job": job_id,
        "text": SLOW,
    }


def _words(key: DataKey, job_id: int, row: dict[str, Any]) -> dict[str, Any]:
    if row["sealed"] is None:
        return {}
    words: dict[str, Any] = unseal(key, row["sealed"], "event", job_id, row["seq"])
    return words


def _turn(
    job_id: int, row: dict[str, Any], data: dict[str, Any], redactor: Redactor
) -> Iterable[dict[str, Any]]:
    """A turn's calls, and its words if it has calls: without any, its words are the answer."""
    blocks = data["content"]
    if not any(block["type"] == "tool_use" for block in blocks):
        return
    for number, block in enumerate(blocks):
        base = {
            "at": row["at"],
            "place": f"{row['at']:017.6f}.1.{row['id']:012d}.{number:03d}",
            "job": job_id,
        }
        if block["type"] == "text" and block["text"].strip():
            yield {
                **base,
                "id": f"aside-{row['id']}-{number}",
                "kind": "aside",
                "text": redactor.redact(block["text"]),
            }
        elif block["type"] == "tool_use":
            yield {**base, **_call(job_id, block, redactor)}


def _call(job_id: int, block: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    arguments = redactor.redact_value(block["input"])
    title, code, language = _title(block["name"], arguments if isinstance(arguments, dict) else {})
    return {
        "id": f"call-{job_id}-{block['id']}",
        "kind": "step",
        "call": block["id"],
        "name": block["name"],
        "title": title,
        "code": code[:MOST_SHOWN],
        "language": language,
        "status": "asked",
        "output": "",
        "exit_code": None,
        "took_ms": None,
        "diff": "",
        "file": None,
        "images": [],
        "cut": len(code) > MOST_SHOWN,
    }


def _title(name: str, arguments: dict[str, Any]) -> tuple[str, str, str]:
    """A line for the head of the card, and what to show inside with its language."""
    if name == "bash":
        command = str(arguments.get("command", ""))
        return command.strip().partition("\n")[0][:200], command, "bash"
    subject = next((key for key in ("path", "pattern", "url", "text") if key in arguments), "")
    # What was written or edited is shown as the change it made.
    rest = {key: value for key, value in arguments.items() if key not in (subject, "content", "edits")}
    lines = [f"{key}: {value}" for key, value in rest.items()]
    return str(arguments.get(subject, ""))[:200], "\n".join(lines), ""


def _finished(data: dict[str, Any], redactor: Redactor) -> dict[str, Any]:
    details = data.get("details") or {}
    output = redactor.redact(str(data.get("content", "")))
    return {
        "status": data["status"] if not data.get("timed_out") else "timed out",
        "output": output[:MOST_SHOWN],
        "cut": len(output) > MOST_SHOWN,
        "exit_code": data.get("exit_code"),
        "took_ms": data.get("took_ms"),
        "diff": redactor.redact(str(details.get("diff", "")))[:MOST_SHOWN],
        "file": details.get("file"),
        "images": [image for image in data.get("images", ()) if image.get("blob")],
    }
