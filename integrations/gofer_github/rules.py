"""Rules of a repository: what is done without anybody asking, because its `.gofer.toml` says so."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from gofer.integration import Author, Incoming

TRIGGER = "rule"
AUTHOR = Author("rules", "a rule of this repository", is_bot=True)
"""Whose request it is: the maintainers', who wrote the rule, not whoever set it off."""
Occasion = Literal["opened", "synchronize", "label"]


class Rule(BaseModel):
    """One of them: on which occasions which workflow is begun."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    on: tuple[Occasion, ...] = Field(min_length=1)
    workflow: str = Field(min_length=1, max_length=60)
    kinds: tuple[Literal["issue", "pull"], ...] = ("issue", "pull")
    label: str = Field(default="", max_length=50)
    drafts: bool = False
    """Whether draft pull requests count."""
    from_anyone: bool = False
    """Whether it counts whoever set it off; else only who may write to the repository does."""
    instructions: str = Field(default="", max_length=4000)

    @model_validator(mode="after")
    def _has_its_label(self) -> Rule:
        if ("label" in self.on) != bool(self.label):
            raise ValueError("a rule has a label if, and only if, it is on label")
        return self

    def fits(self, message: Incoming) -> bool:
        """Whether an event is one that it is for."""
        facts = message.facts
        if facts.get("occasion") not in self.on or message.kind not in self.kinds:
            return False
        if facts.get("occasion") == "label" and str(facts.get("label", "")).lower() != self.label.lower():
            return False
        return self.drafts or not facts.get("draft")
