"""Inline buttons: their labels, and the 64 bytes of callback data that a press sends back."""

from __future__ import annotations

import re
from typing import Any

STOP = "stop"
_ANSWER = re.compile(r"q:([A-Za-z0-9_-]{1,50}):([0-9]{1,2})")
_OFFER = re.compile(r"c:(agent|model) (\S{1,60})")
LABEL_LIMIT = 60
DATA_LIMIT = 64
"""Bytes of callback data."""
MAX_CHOICES = 20


def stop_keyboard() -> dict[str, Any]:
    """One button that stops the run."""
    return {"inline_keyboard": [[{"text": "Stop", "callback_data": STOP}]]}


def choices_keyboard(question: str, choices: tuple[str, ...]) -> dict[str, Any] | None:
    """A button for each choice, one to a row unless all are short."""
    if not question or not choices:
        return None
    buttons = [
        {"text": (choice.strip() or "…")[:LABEL_LIMIT], "callback_data": f"q:{question}:{number}"}
        for number, choice in enumerate(choices[:MAX_CHOICES])
    ]
    in_one_row = len(buttons) <= 3 and sum(len(button["text"]) for button in buttons) <= 30
    return {"inline_keyboard": [buttons] if in_one_row else [[button] for button in buttons]}


def offers_keyboard(offers: Any) -> dict[str, Any] | None:
    """A button for each offered command that fits the callback data, two to a row."""
    found = [str(offer) for offer in offers] if isinstance(offers, list) else []
    buttons = [
        {"text": offer.partition(" ")[2][:LABEL_LIMIT], "callback_data": f"c:{offer}"}
        for offer in found
        if offer.partition(" ")[2].strip() and len(f"c:{offer}".encode()) <= DATA_LIMIT
    ]
    return (
        {"inline_keyboard": [buttons[at : at + 2] for at in range(0, len(buttons), 2)]} if buttons else None
    )


def offered(data: str) -> tuple[str, str]:
    """The command and arguments of a press, if any."""
    found = _OFFER.fullmatch(data)
    return (found[1], found[2]) if found else ("", "")


def pressed(data: str) -> tuple[str, int] | None:
    """The question and choice of a press, if any."""
    found = _ANSWER.fullmatch(data)
    return (found[1], int(found[2])) if found else None
