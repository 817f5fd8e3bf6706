"""Reviews: where a comment stands in a diff, and the tools that answer, resolve and write review comments."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from gofer.errors import Permanent
from gofer.tool import ToolContext, ToolResult
from gofer_github import markdown
from gofer_github.access import READ, RESOLVE, WRITE
from gofer_github.client import Client, is_missing, login_of
from gofer_github.scope import Scope
from gofer_github.tool_arguments import Review, ReviewComment, ThreadOf, ThreadReply

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


_THREADS = """query($owner: String!, $name: String!, $number: Int!, $before: String) {
  repository(owner: $owner, name: $name) { pullRequest(number: $number) {
    reviewThreads(last: 100, before: $before) {
      pageInfo { hasPreviousPage startCursor }
      nodes { id isResolved comments(first: 1) { nodes { databaseId } } } } } } }"""
_RESOLVE = """mutation($thread: ID!) { resolveReviewThread(input: {threadId: $thread}) { thread { id } } }"""
MAX_THREAD_PAGES = 10


class NoThread(Exception):
    """It is not known which thread is meant; the text says what to do."""


@dataclass(frozen=True, slots=True)
class ReviewTools(Scope):
    """The tools of one conversation that are about reviews."""

    async def reply(self, wanted: ThreadReply, context: ToolContext) -> ToolResult:
        client = await self.access.to(self.account, self.place.repository, WRITE)
        try:
            thread = await self._thread(client, wanted.comment)
        except NoThread as error:
            return ToolResult(str(error), is_error=True)
        known = await client.pages(self.path(f"pulls/{self.place.number}/comments"))
        if not any(self.has_written(one, context) for one in known):
            path = self.path(f"pulls/{self.place.number}/comments/{thread}/replies")
            body = f"{self.outgoing(context, wanted.body)}\n\n{self.mark(context)}"
            await client.post(path, {"body": body})
        return ToolResult(f"Replied in the thread of comment {thread}.", progress=True)

    async def resolve(self, wanted: ThreadOf, context: ToolContext) -> ToolResult:
        client = await self.access.to(self.account, self.place.repository, RESOLVE)
        try:
            thread = await self._thread(client, wanted.comment)
        except NoThread as error:
            return ToolResult(str(error), is_error=True)
        owner, _, name = self.place.repository.partition("/")
        before: str | None = None
        for _ in range(MAX_THREAD_PAGES):
            found = await client.graphql(
                _THREADS, owner=owner, name=name, number=self.place.number, before=before
            )
            threads = found["repository"]["pullRequest"]["reviewThreads"]
            for one in threads["nodes"]:
                if any(comment["databaseId"] == thread for comment in one["comments"]["nodes"]):
                    await client.graphql(_RESOLVE, thread=one["id"])
                    return ToolResult(f"Resolved the thread of comment {thread}.", progress=True)
            page = threads.get("pageInfo") or {}
            if not page.get("hasPreviousPage"):
                break
            before = page.get("startCursor")
        return ToolResult("The thread is gone.", is_error=True)

    async def _thread(self, client: Client, comment: int | None) -> int:
        """The first comment of the thread that is meant; raises NoThread."""
        facts = self.message.facts
        if comment is None:
            await self._only_one(client)
            return int(facts["thread"])
        if comment in (facts.get("review_comment"), facts.get("thread")):
            return int(facts["thread"])
        try:
            found = await client.get(self.path(f"pulls/comments/{comment}"))
        except Permanent as error:
            if is_missing(error):
                raise NoThread(f"There is no review comment {comment}; github_read lists them.") from None
            raise
        if not str(found.get("pull_request_url", "")).endswith(f"/pulls/{self.place.number}"):
            raise NoThread(f"Comment {comment} is not on this pull request.")
        return number(found.get("in_reply_to_id")) or comment

    async def _only_one(self, client: Client) -> None:
        """Raise NoThread unless the request is one review comment, and its review has no other."""
        facts = self.message.facts
        if not facts.get("thread"):
            detail = (
                "This request is no review comment. Say which `comment` is meant; github_read lists them."
            )
            raise NoThread(detail)
        if not facts.get("review"):
            return
        path = self.path(f"pulls/{self.place.number}/reviews/{facts['review']}/comments")
        together = await client.pages(path, most=2)
        if len(together) > 1:
            listed = "; ".join(f"{one['id']} ({place(one)})" for one in together[:50])
            raise NoThread(f"Its review has several comments. Say which `comment` is meant: {listed}.")

    async def review(self, wanted: Review, context: ToolContext) -> ToolResult:
        """Submit one review. Every place is checked against the diff first: GitHub refuses a review as a whole."""
        if self.message.kind != "pull":
            return ToolResult("This is an issue: there is nothing to review.", is_error=True)
        reading = await self.access.to(self.account, self.place.repository, READ)
        pull = await reading.get(self.path(f"pulls/{self.place.number}"))
        files = patches(await reading.pages(self.path(f"pulls/{self.place.number}/files"), most=30))
        problems = [detail for one in wanted.comments if (detail := _problem(one, files))]
        if wanted.verdict == "request_changes" and self.settings.wrote(login_of(pull)):
            problems.append(
                "Changes cannot be requested on a pull request of your own; use the verdict comment."
            )
        if problems:
            detail = "\n".join(["Nothing was submitted:", *problems])
            return ToolResult(detail, is_error=True, untrusted=True)
        client = await self.access.to(self.account, self.place.repository, WRITE)
        path = self.path(f"pulls/{self.place.number}/reviews")
        known = await client.pages(path)
        made = next((one for one in known if self.has_written(one, context)), None)
        made = made or await client.post(
            path,
            {
                "commit_id": pull["head"]["sha"],
                "event": wanted.verdict.upper(),
                "body": f"{self.outgoing(context, wanted.body)}\n\n{self.mark(context)}",
                "comments": [_as_sent(one, self.outgoing(context, one.body)) for one in wanted.comments],
            },
        )
        return ToolResult(
            f"Submitted the review {made['id']} with {len(wanted.comments)} comments on lines.", progress=True
        )


def _problem(one: ReviewComment, files: dict[str, str | None]) -> str:
    if one.suggestion is not None and one.side == "old":
        return f"{one.path}, line {one.line}: a suggestion can replace lines of the new side only."
    return misplaced(one.path, one.line, one.start_line, one.side, files)


def _as_sent(one: ReviewComment, text: str) -> dict[str, Any]:
    side = SIDES[one.side]
    if one.suggestion is not None:
        text = f"{text}\n\n{suggestion_block(one.suggestion)}"
    sent: dict[str, Any] = {"path": one.path, "line": one.line, "side": side, "body": text}
    if one.start_line is not None:
        sent |= {"start_line": one.start_line, "start_side": side}
    return sent
