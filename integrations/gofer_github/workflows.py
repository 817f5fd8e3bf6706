"""Workflows: what kind of request gets which instructions and tools. Data, one file each.

A user's own files, in the folder that the setting `workflows` names, come before those that ship with Gofer.
"""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from gofer.errors import Permanent
from gofer.integration import Incoming
from gofer_github.settings import Settings

SHIPPED = Path(__file__).parent / "workflows"


class Limits(BaseModel):
    """What a run may use at most, beside the agent's own limits."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int | None = Field(default=None, ge=1)
    active_minutes: float | None = Field(default=None, gt=0)
    tokens: int | None = Field(default=None, ge=1000)
    job_dollars: float | None = Field(default=None, gt=0)


class Workflow(BaseModel):
    """One of them. It is for a request that fits `kinds` and, where they are given, `words` or `triggers`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    kinds: tuple[str, ...] = ("issue", "pull")
    words: tuple[str, ...] = ()
    """The word behind /gofer."""
    triggers: tuple[str, ...] = ()
    instructions: str
    tools: tuple[str, ...] = ("*",)
    """Which of GitHub's tools the run has."""
    may_push: bool = True
    limits: Limits = Limits()

    def fits(self, message: Incoming) -> bool:
        """Whether a request is of this sort. One that names its workflow has no other."""
        if message.kind not in self.kinds:
            return False
        if named := message.facts.get("workflow"):
            return bool(named == self.name)
        told = str(message.facts.get("word", "")) in self.words or message.trigger in self.triggers
        return told or not (self.words or self.triggers)


def chosen(message: Incoming, settings: Settings) -> Workflow:
    """The first that fits."""
    folders = [Path(settings.workflows)] if settings.workflows else []
    for folder in [*folders, SHIPPED]:
        for path in sorted(folder.glob("*.toml")):
            if (found := _load(path, path.stat().st_mtime)).fits(message):
                return found
    named = message.facts.get("workflow")
    told = f"There is no workflow {named} for this ({message.kind})." if named else "No workflow fits."
    raise Permanent(told, reason="workflow")


@lru_cache(maxsize=64)
def _load(path: Path, changed: float) -> Workflow:
    name = path.stem.lstrip("0123456789-")
    try:
        return Workflow.model_validate({"name": name, **tomllib.loads(path.read_text("utf-8"))})
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise Permanent(f"{path.name} is no workflow: {error}", reason="workflow") from None
