"""Which programs have a terminal now, by what the system says of its processes."""

from __future__ import annotations

import os
import re
from pathlib import Path

from gofer.runtime_host.configuration import EDITORS
from gofer_sandbox import processes

MAX_RELATIVES = 50
_INTERPRETER = re.compile(r"^(?:python|node|nodejs|bun|deno|ruby|perl|bash|sh|env)[\d.]*$")


def programs_in_front(pid: int, command: str) -> set[str]:
    """Names of what has the terminal: the program, the script that an interpreter runs, and an editor or pager that
    the program has called meanwhile. `command` is what tmux says, for where there is no /proc."""
    leader = _foreground(pid)
    if leader is None:
        return {command}
    names = _names(leader)
    for child in _relatives(leader):
        names |= _names(child) & EDITORS
    return names or {command}


def _foreground(pid: int) -> int | None:
    """The process group that has the terminal of a process."""
    fields = _stat(pid)
    group = int(fields[5]) if fields else 0
    return group if group > 0 else None


def _stat(pid: int) -> list[bytes]:
    try:
        data = Path(f"/proc/{pid}/stat").read_bytes()
    except OSError:
        return []
    return data[data.rindex(b")") + 2 :].split()


def _relatives(leader: int) -> list[int]:
    """Descendants of a process that share its process group, and so the terminal."""
    found: list[int] = []
    left = [leader]
    while left and len(found) < MAX_RELATIVES:
        for child in processes.children(left.pop()):
            fields = _stat(child)
            if fields and int(fields[2]) == leader:
                found.append(child)
                left.append(child)
    return found


def _names(pid: int) -> set[str]:
    try:
        words = Path(f"/proc/{pid}/cmdline").read_bytes().decode("utf-8", "replace").split("\0")
    except OSError:
        return set()
    if not words[0]:
        return set()
    name = os.path.basename(words[0]).lstrip("-").split(" ")[0]
    names = {name}
    if _INTERPRETER.match(name):
        script = next((word for word in words[1:] if word and not word.startswith("-")), "")
        names.add(os.path.basename(script))
    return names - {""}
