"""Who may call what: by the agent's allowlist, by who asked for the run, and by what the run has read.

Checked when a tool runs; what is offered follows the same rules, so that a model is not tempted.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

from gofer.agent.conversation import Trust
from gofer.tool import Tier, Tool

TIERS_BY_TRUST: dict[Trust, frozenset[Tier]] = {
    "owner": frozenset(Tier),
    "member": frozenset(Tier),
    "stranger": frozenset({Tier.READ}),
    "unknown": frozenset(),
}


@dataclass(frozen=True, slots=True)
class Policy:
    """The rules for one run."""

    allowed: Collection[str]
    """Names on the agent's list; `*` stands for all."""
    trust: Trust

    def refuses(self, tool: Tool[Any], *, narrowed: bool) -> str | None:
        """Why this tool may not run now; None when it may."""
        if "*" not in self.allowed and tool.name not in self.allowed:
            return f"The tool {tool.name} is not on this agent's list."
        if tool.tier not in TIERS_BY_TRUST[self.trust]:
            return f"A {self.trust} asked for this run, so tools of the tier {tool.tier} are closed."
        if narrowed and tool.reach == "outside":
            return (
                f"This run has read text by strangers, so {tool.name}, which reaches beyond this conversation, "
                "is closed for the rest of it."
            )
        return None
