"""Every page there is, with something on it."""

from __future__ import annotations

from typing import Any

from .seed_data import Lived


def _shell(lived: Lived) -> dict[str, Any]:
    found: dict[str, Any] = lived.ask("GET", "/shells")["shells"][-1]
    return found


def places(lived: Lived) -> dict[str, str]:
    """Addresses by name."""
    answers = [job for job in lived.jobs() if job["kind"] == "answer"]
    first, last = answers[-1], answers[0]
    found = {
        "overview": "/",
        "runs": "/runs",
        "run": f"/runs/{first['id']}",
        "run-live": f"/runs/{last['id']}",
        "events": f"/runs/{first['id']}/events",
        "conversation": f"/conversations/{first['conversation_id']}",
        "delivery": "/inbox/1",
        "simulate": "/inbox/simulate?like=1",
        "connection": f"/connections/{lived.connection}",
        "connection-new": "/connections/new/telegram",
        "agent": "/agents/new",
        "agent-gofer": "/agents/gofer",
        "missing": "/runs/999999",
        "welcome": "/welcome",
        "docs": "/docs",
        "shell": (shell := "/shells/{conversation_id}/{agent_id}".format(**_shell(lived))),
        "inside": f"{shell}/inside",
    }
    lists = (
        "conversations",
        "goals",
        "inbox",
        "shells",
        "schedules",
        "connections",
        "agents",
        "runtimes",
        "secrets",
        "members",
    )
    plain = ("costs", "levels", "audit", "logs", "versions", "doctor", "settings")
    return {**found, **{name: f"/{name}" for name in (*lists, *plain)}}
