"""The commands that the platform answers, wherever they are typed."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Command:
    """Something people may type after a slash, answered by the platform."""

    name: str
    help: str
    arguments: str = ""
    private: bool = False
    """Offered only where the author is alone with us."""


COMMANDS = (
    Command("help", "What I can do"),
    Command("new", "Start afresh: what was said before is forgotten"),
    Command("stop", "Stop what I am doing here"),
    Command("status", "What I am doing, and what it has cost so far"),
    Command("cost", "What was spent here, today and in all"),
    Command("agent", "Who hears this conversation; an owner can choose another", "[name]"),
    Command("model", "Which model answers; an owner can choose another", "[provider/model]"),
    Command("settings", "How this conversation is set up"),
    Command(
        "link",
        "Make yourself known elsewhere (@ and your name there), or here with a code",
        "[@name or code]",
    ),
    Command("start", "Say hello, or pair with a code", "[code]", private=True),
)
"""Every command the platform answers, wherever it is typed."""
