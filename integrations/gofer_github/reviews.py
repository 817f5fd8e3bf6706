"""Reviews: where a comment stands in a diff, in words for the model, and whether a place is one that GitHub takes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gofer_github import markdown

MAX_HUNK_LINES = 30
MAX_HUNK = 4_000
_HUNK = re.compile(r"^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@")
_SIDES = {"LEFT": "old", "RIGHT": "new"}
SIDES = {"old": "LEFT", "new": "RIGHT"}


def number(value: Any) -> int | None:
    """A whole number that a payload may have, else None."""
    return value if isinstance(value, int) and not isinstance(value, bool) and value > 0 else None


def place_facts(comment: Mapping[str, Any]) -> dict[str, Any]:
    """Where a review comment stands, for whoever answers it."""
    line = number(comment.get("line"))
    return {
        "path": markdown.line(str(comment.get("path") or ""), 500),
        "line": line or number(comment.get("original_line")),
        "start_line": number(comment.get("start_line") if line else comment.get("original_start_line")),
        "side": _SIDES.get(str(comment.get("side")), "new"),
        "outdated": line is None and number(comment.get("original_line")) is not None,
    }


def place(comment: Mapping[str, Any]) -> str:
    """The same in words: `a.py, lines 3 to 7 of the new side`."""
    where = place_facts(comment)
    line, start = where["line"], where["start_line"]
    if line is None:
        return f"{where['path']}, as a whole"
    lines = f"lines {start} to {line}" if start and start != line else f"line {line}"
    late = " (of an earlier version; the code has changed since)" if where["outdated"] else ""
    return f"{where['path']}, {lines} of the {where['side']} side{late}"


def hunk(comment: Mapping[str, Any]) -> str:
    """The end of the diff that a review comment stands below; its last line is the one commented on."""
    text = markdown.plain(str(comment.get("diff_hunk") or ""))
    lines = text.split("\n")
    cut = lines if len(lines) <= MAX_HUNK_LINES else ["…", *lines[-MAX_HUNK_LINES:]]
    return "\n".join(cut)[-MAX_HUNK:]


@dataclass(frozen=True, slots=True)
class Hunk:
    """The lines of one hunk of a diff, by their numbers before and after."""

    old: range
    new: range

    def side(self, side: str) -> range:
        return self.old if side == "old" else self.new


def hunks(patch: str) -> list[Hunk]:
    """The hunks of one file's patch. Context lines belong to both sides."""
    found: list[Hunk] = []
    old = new = old_start = new_start = 0
    inside = False
    for line in patch.split("\n"):
        if begins := _HUNK.match(line):
            if inside:
                found.append(Hunk(range(old_start, old), range(new_start, new)))
            old_start = old = int(begins.group(1))
            new_start = new = int(begins.group(2))
            inside = True
        elif inside and not line.startswith("\\"):
            old += not line.startswith("+")
            new += not line.startswith("-")
    if inside:
        found.append(Hunk(range(old_start, old), range(new_start, new)))
    return found


def misplaced(
    path: str, line: int, start_line: int | None, side: str, files: Mapping[str, str | None]
) -> str:
    """Why a comment cannot stand there; empty when it can. `files` are the patches by path, None where GitHub shows
    none."""
    if path not in files:
        known = ", ".join(sorted(files)[:20])
        return f"{path} is not changed by this pull request. Changed are: {known}."
    patch = files[path]
    if patch is None:
        return f"GitHub shows no diff of {path} (binary or too big), so its lines cannot be commented on."
    if start_line is not None and start_line >= line:
        return f"{path}: start_line {start_line} must be before line {line}."
    parts = [one.side(side) for one in hunks(patch)]
    if any(line in part and (start_line is None or start_line in part) for part in parts):
        return ""
    shown = ", ".join(_shown(part) for part in parts if part) or "none"
    wanted = f"lines {start_line} to {line}" if start_line is not None else f"line {line}"
    return f"{path}: {wanted} of the {side} side is not in one part of the diff. Lines that are: {shown}."


def _shown(lines: range) -> str:
    return f"{lines[0]}-{lines[-1]}" if len(lines) > 1 else f"{lines[0]}"


def suggestion_block(text: str) -> str:
    """A suggestion that people can apply with one click: it replaces the lines commented on."""
    ticks = max((len(run) for run in re.findall("`+", text)), default=0)
    fence = "`" * max(3, ticks + 1)
    inner = text.removesuffix("\n")
    # Nothing takes the lines away; an empty line puts one in their place.
    return f"{fence}suggestion\n{inner}\n{fence}" if text else f"{fence}suggestion\n{fence}"


def patches(files: Sequence[Mapping[str, Any]]) -> dict[str, str | None]:
    """What GitHub lists of a pull request's files, by path."""
    return {str(one["filename"]): one.get("patch") for one in files}
