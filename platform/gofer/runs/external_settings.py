"""What an agent's file says about an agent that somebody runs elsewhere."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

KINDS = ("tmux", "acp", "callback")
"""How an external agent is reached: text in a terminal, the Agent Client Protocol, or a signed request."""
RuntimeKind = Literal["tmux", "acp", "callback"]


class ExternalSettings(BaseModel):
    """How an external agent is woken, and who does its work when it does not wake."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    fallback: str = Field(default="", pattern=r"^([a-z0-9][a-z0-9-]{0,39})?$")
    """The agent of Gofer's own that answers when this one cannot be woken; empty for none."""
    ack_within: float = Field(default=60, ge=1, le=3600)
    """Seconds that it has to acknowledge what was delivered."""
    answer_within: float = Field(default=3600, ge=1, le=7 * 86400)
    """Seconds that it has to answer once it has acknowledged."""
    trusted: bool = False
    """Whether other agents may take its words as those of a member, not of a stranger."""
    when_typing: Literal["deliver", "fallback"] = "fallback"
    """What happens when somebody types in its terminal for as long as a delivery may be put off."""
    wake_when_closed: bool = False
    """Whether it is woken in a conversation that is closed."""
