"""Workflows: instructions, tools and limits for a kind of request, one TOML file each. Rules start them unasked.

The user's own files, in the folder of the setting `workflows`, come before those that ship with Gofer. A repository's
rules are in its `.gofer.toml`.
"""

from __future__ import annotations

import tomllib
from functools import lru_cache
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from gofer.errors import Permanent
from gofer.integration import Author, Incoming
from gofer_github.settings import Settings

SHIPPED = Path(__file__).parent / "workflows"


class RunLimits(BaseModel):
    """Limits of a run, in addition to the agent's own."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    steps: int | None = Field(default=None, ge=1)
    active_minutes: float | None = Field(default=None, gt=0)
    tokens: int | None = Field(default=None, ge=1000)
    job_dollars: float | None = Field(default=None, gt=0)


class Workflow(BaseModel):
    """One workflow. It is for requests that match `kinds` and, if given, `words` or `triggers`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    name: str
    kinds: tuple[str, ...] = ("issue", "pull")
    words: tuple[str, ...] = ()
    """The word behind /gofer."""
    triggers: tuple[str, ...] = ()
    instructions: str
    tools: tuple[str, ...] = ("*",)
    """The GitHub tools that the run has."""
    may_push: bool = True
    limits: RunLimits = RunLimits()

    def fits(self, message: Incoming) -> bool:
        """Whether a request matches. A request that names a workflow matches no other."""
        if message.kind not in self.kinds:
            return False
        if named := message.facts.get("workflow"):
            return bool(named == self.name)
        detail = str(message.facts.get("word", "")) in self.words or message.trigger in self.triggers
        return detail or not (self.words or self.triggers)


def chosen(message: Incoming, settings: Settings) -> Workflow:
    """The first workflow that matches."""
    folders = [Path(settings.workflows)] if settings.workflows else []
    for folder in [*folders, SHIPPED]:
        for path in sorted(folder.glob("*.toml")):
            if (found := _load(path, path.stat().st_mtime)).fits(message):
                return found
    named = message.facts.get("workflow")
    detail = f"There is no workflow {named} for this ({message.kind})." if named else "No workflow fits."
    raise Permanent(detail, reason="workflow")


@lru_cache(maxsize=64)
def _load(path: Path, changed: float) -> Workflow:
    name = path.stem.lstrip("0123456789-")
    try:
        return Workflow.model_validate({"name": name, **tomllib.loads(path.read_text("utf-8"))})
    except (tomllib.TOMLDecodeError, ValidationError) as error:
        raise Permanent(f"{path.name} is not a workflow: {error}", reason="workflow") from None


RULE_TRIGGER = "rule"
RULE_AUTHOR = Author("rules", "a rule of this repository", is_bot=True)
"""The author of a rule's request: the maintainers, who wrote the rule, not the person whose action started it."""
Occasion = Literal["opened", "synchronize", "label"]


class WorkflowRule(BaseModel):
    """Which workflow starts on which occasions."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    on: tuple[Occasion, ...] = Field(min_length=1)
    workflow: str = Field(min_length=1, max_length=60)
    kinds: tuple[Literal["issue", "pull"], ...] = ("issue", "pull")
    label: str = Field(default="", max_length=50)
    drafts: bool = False
    """Whether draft pull requests count."""
    from_anyone: bool = False
    """Whether anyone can start it; otherwise only people who may write to the repository."""
    instructions: str = Field(default="", max_length=4000)

    @model_validator(mode="after")
    def _has_its_label(self) -> WorkflowRule:
        if ("label" in self.on) != bool(self.label):
            raise ValueError("a rule has a label if, and only if, it is on label")
        return self

    def fits(self, message: Incoming) -> bool:
        """Whether the rule is for this event."""
        facts = message.facts
        if facts.get("occasion") not in self.on or message.kind not in self.kinds:
            return False
        if facts.get("occasion") == "label" and str(facts.get("label", "")).lower() != self.label.lower():
            return False
        return self.drafts or not facts.get("draft")
