"""What an agent can do with reviews: answer each comment in its thread, resolve it, and review by itself."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from gofer.errors import Permanent
from gofer.tool import ToolContext, ToolResult
from gofer_github import reviews
from gofer_github.access import READ, RESOLVE, WRITE
from gofer_github.client import Client, is_missing, login_of
from gofer_github.scope import Scope
from gofer_github.tool_arguments import Review, ReviewComment, ThreadOf, ThreadReply

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
        return reviews.number(found.get("in_reply_to_id")) or comment

    async def _only_one(self, client: Client) -> None:
        """Raise NoThread unless the request is one review comment, and its review has no other."""
        facts = self.message.facts
        if not facts.get("thread"):
            told = "This request is no review comment. Say which `comment` is meant; github_read lists them."
            raise NoThread(told)
        if not facts.get("review"):
            return
        path = self.path(f"pulls/{self.place.number}/reviews/{facts['review']}/comments")
        together = await client.pages(path, most=2)
        if len(together) > 1:
            listed = "; ".join(f"{one['id']} ({reviews.place(one)})" for one in together[:50])
            raise NoThread(f"Its review has several comments. Say which `comment` is meant: {listed}.")

    async def review(self, wanted: Review, context: ToolContext) -> ToolResult:
        """Submit one review. Every place is checked against the diff first: GitHub refuses a review as a whole."""
        if self.message.kind != "pull":
            return ToolResult("This is an issue: there is nothing to review.", is_error=True)
        reading = await self.access.to(self.account, self.place.repository, READ)
        pull = await reading.get(self.path(f"pulls/{self.place.number}"))
        files = reviews.patches(await reading.pages(self.path(f"pulls/{self.place.number}/files"), most=30))
        problems = [told for one in wanted.comments if (told := _problem(one, files))]
        if wanted.verdict == "request_changes" and self.settings.wrote(login_of(pull)):
            problems.append(
                "Changes cannot be requested on a pull request of your own; use the verdict comment."
            )
        if problems:
            told = "\n".join(["Nothing was submitted:", *problems])
            return ToolResult(told, is_error=True, untrusted=True)
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
    return reviews.misplaced(one.path, one.line, one.start_line, one.side, files)


def _as_sent(one: ReviewComment, text: str) -> dict[str, Any]:
    side = reviews.SIDES[one.side]
    if one.suggestion is not None:
        text = f"{text}\n\n{reviews.suggestion_block(one.suggestion)}"
    sent: dict[str, Any] = {"path": one.path, "line": one.line, "side": side, "body": text}
    if one.start_line is not None:
        sent |= {"start_line": one.start_line, "start_side": side}
    return sent
