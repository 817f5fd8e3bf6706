"""Users' standing rules, found by plain patterns and kept verbatim through every compaction."""

from __future__ import annotations

import re
from collections.abc import Iterable

_RULE = re.compile(
    r"\b(always|never|from now on|in (?:the )?future|do not|don['’]t|must|remember|make sure|only ever|"
    r"under no circumstances|at all times|whenever|prefer|insist)\b",
    re.I,
)
_SENTENCE = re.compile(r"(?<=[.!?])\s+|\n+")
MAX_RULES = 60
MAX_LENGTH = 1000


def standing_rules(texts: Iterable[str], known: Iterable[str] = ()) -> tuple[str, ...]:
    """Sentences that read like rules, oldest first, each once. The newest win when there are too many."""
    found = dict.fromkeys(known)
    for text in texts:
        for sentence in _SENTENCE.split(text):
            sentence = sentence.strip()
            if 0 < len(sentence) <= MAX_LENGTH and _RULE.search(sentence):
                found.setdefault(sentence)
    return tuple(found)[-MAX_RULES:]
