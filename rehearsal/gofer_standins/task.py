"""The demo's task: a scripted model that works in a real shell and can only answer with what it really printed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gofer_standins.anthropic import Reply, call, calls, say

KEY = "rehearsal-key-of-the-demo"
ASK = "Write a program that prints the first twelve primes, run it, and tell me their sum."

PROGRAM = """n=1 count=0 sum=0
while ((count < 12)); do
  ((n += 1)); prime=1
  for ((d = 2; d * d <= n; d++)); do ((n % d)) || prime=0; done
  ((prime)) && { printf '%s ' "$n"; ((count += 1, sum += n)); }
done
echo; echo "sum $sum"
"""
SUM = "sum 197"
"""What the program prints and the script does not know."""


def script(request: Mapping[str, Any]) -> Reply:
    """The next turn, by how many answers the transcript has."""
    turn = sum(1 for message in request["messages"] if message["role"] == "assistant")
    if turn == 0:
        writing = call("write", path="primes.sh", content=PROGRAM)
        return say("I shall write it first.", writing, call("ls", path="."))
    if turn == 1:
        return calls(call("bash", command="bash primes.sh"))
    return say(f"Done. The shell printed:\n```\n{_printed(request)}\n```")


def _printed(request: Mapping[str, Any]) -> str:
    """The last command's output, as the request brought it back."""
    for message in reversed(request["messages"]):
        for block in message["content"]:
            if block["type"] == "tool_result":
                content = block["content"]
                text = (
                    content if isinstance(content, str) else "".join(part.get("text", "") for part in content)
                )
                return text.strip()
    return ""
