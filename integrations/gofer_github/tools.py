"""What an agent can do on GitHub, in the conversation's own repository. `reach` says what is closed once a run has read
strangers' words."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2

from gofer.errors import Permanent, Temporary
from gofer.integration import ConnectionContext, Incoming
from gofer.tool import Arguments, Reach, Tier, Tool, ToolContext, ToolResult
from gofer_github import markdown, marks, reviews
from gofer_github.access import LOGS, OPEN_PULL, READ, STATUSES, WRITE, Access, moment
from gofer_github.client import Client, login_of
from gofer_github.repository_access import RULE, acting_commits, branches, checkout
from gofer_github.reviews import ReviewTools
from gofer_github.scope import Scope
from gofer_github.tool_arguments import (
    About,
    Checkout,
    Labels,
    Logins,
    OfCheck,
    OfFile,
    Pull,
    Remark,
    Review,
    ThreadOf,
    ThreadReply,
    Words,
)
from gofer_github.workflows import chosen

DRAFT = "draft"
"""The label of a pull request where drafts are not supported."""
MAX_DIFF = 200_000
MAX_LOG = 8 * 1024 * 1024

_ELSEWHERE = re.compile(r"[(\\-]*(?:repo|org|user|enterprise|project|is):", re.I)
_LOG_NOISE = re.compile(r"^\ufeff?\d{4}-\d\d-\d\dT[\d:.]+Z ")
A = TypeVar("A", bound=Arguments)


@dataclass(frozen=True, slots=True)
class Work(Scope):
    """Implements the tools, except for those about reviews."""

    async def read(self, about: About, context: ToolContext) -> ToolResult:
        number = about.number or self.place.number
        client = await self.access.to(self.account, self.place.repository, READ)
        issue = await client.get(self.path(f"issues/{number}"))
        comments = await client.pages(self.path(f"issues/{number}/comments"), most=3)
        if "pull_request" in issue:
            given = await client.pages(self.path(f"pulls/{number}/reviews"), most=3)
            comments += [one for one in given if one.get("body") or one.get("state") != "COMMENTED"]
            comments += await client.pages(self.path(f"pulls/{number}/comments"), most=3)
        kind = "Pull request" if "pull_request" in issue else "Issue"
        head = f"{kind} #{number} ({issue['state']}): {self._title(issue)}"
        labels = ", ".join(label["name"] for label in issue["labels"])
        said = await asyncio.to_thread(lambda: [self._said(one) for one in [issue, *comments]])
        text = "\n\n".join([head, f"Labels: {labels or 'none'}", *said])
        return ToolResult(text, untrusted=self._others([issue, *comments], number))

    def _title(self, issue: dict[str, Any]) -> str:
        """An issue's title; for the issue of the request, its title at that time."""
        title = markdown.line(issue["title"])
        if issue["number"] != self.place.number:
            return "(changed after the request was made)" if self._late(issue) else title
        then = str(self.message.facts.get("title", title))
        if then == title or self._ours(issue):
            return title
        return f"{then} (as it was when the request was made)"

    def _said(self, one: dict[str, Any]) -> str:
        """One entry, left out when it was changed after the request was made."""
        who = markdown.line(one["user"]["login"], 60) if one.get("user") else "somebody"
        where = f", {_review_place(one)}" if one.get("path") or one.get("state") in _REVIEWED else ""
        if self._late(one):
            return f"--- {who}{where}: (changed after the request was made, so it is not shown)"
        code = f"{reviews.hunk(one)}\n" if one.get("path") and not one.get("in_reply_to_id") else ""
        return f"--- {who}{where}:\n{code}{markdown.clean(marks.without(one['body']))}"

    def _late(self, one: dict[str, Any]) -> bool:
        """Whether somebody else may have changed an entry since the request. For the request's own issue we know its
        state then; for others we know when they were last changed."""
        if self._ours(one):
            return False
        if one.get("number") == self.place.number:
            digest = hashlib.sha256((one["body"] or "").encode("utf-8", "replace")).hexdigest()
            return bool(self.message.facts.get("body", digest) != digest)
        asked = moment(str(self.message.facts.get("asked_at", "")))
        if "updated_at" not in one:
            return False  # a review: GitHub does not tell whether it was changed
        return bool(asked) and one["updated_at"] != one["created_at"] and moment(one["updated_at"]) > asked

    def _ours(self, one: dict[str, Any]) -> bool:
        return bool(one.get("user")) and self.settings.wrote(one["user"]["login"])

    def _others(self, entries: Sequence[dict[str, Any]], number: int) -> bool:
        """Whether anybody but the requester and us wrote a part of it, or strangers may speak through our words."""
        if any(self._ours(one) and self.has_strangers_words(one, number) for one in entries):
            return True
        requester = str(self.message.facts.get("login", "")).lower()
        logins = {str((one.get("user") or {}).get("login", "")).lower() for one in entries}
        # An author without a login is never the requester; a rule's request has no login either.
        return any(not login or (login != requester and not self.settings.wrote(login)) for login in logins)

    async def diff(self, about: About, context: ToolContext) -> ToolResult:
        client = await self.access.to(self.account, self.place.repository, READ)
        number = about.number or self.place.number
        try:
            text = await client.text(self.path(f"pulls/{number}"), "application/vnd.github.diff")
        except Permanent as error:
            if error.reason != "github.too_big":
                raise
            text = _by_file(await client.pages(self.path(f"pulls/{number}/files"), most=30))
        cut = len(text) > MAX_DIFF
        more = (
            f"{len(text) - MAX_DIFF} characters were left out; check the branch out to see them."
            if cut
            else ""
        )
        return ToolResult(text[:MAX_DIFF], truncated=cut, more=more, untrusted=True)

    async def file(self, of: OfFile, context: ToolContext) -> ToolResult:
        client = await self.access.to(self.account, self.place.repository, READ)
        path = "/".join(part for part in of.path.split("/") if part not in ("", ".", ".."))
        text = await client.file(self.place.repository, path, of.ref)
        # The default branch is the maintainers' own; anything else may be anybody's.
        return ToolResult(text[:MAX_DIFF], truncated=len(text) > MAX_DIFF, untrusted=bool(of.ref))

    async def checks(self, about: About, context: ToolContext) -> ToolResult:
        number = about.number or self.place.number
        client = await self.access.to(self.account, self.place.repository, READ)
        pull = await client.get(self.path(f"pulls/{number}"))
        logs = await self.access.to(self.account, self.place.repository, LOGS)
        runs = await logs.pages(
            self.path(f"commits/{pull['head']['sha']}/check-runs"), key="check_runs", most=2
        )
        lines = await asyncio.to_thread(lambda: [_check(run) for run in runs])
        lines += await self._statuses(str(pull["head"]["sha"]))
        return ToolResult("\n".join(lines) or "There are no checks on it.", untrusted=True)

    async def _statuses(self, sha: str) -> list[str]:
        """Commit statuses, which older services set instead of checks; the latest of each."""
        try:
            client = await self.access.to(self.account, self.place.repository, STATUSES)
            found = await client.get(self.path(f"commits/{sha}/status"), per_page=100)
        except Permanent:
            return ["(Commit statuses cannot be read: the App may not, it lacks statuses: read.)"]
        return [_status(one) for one in found["statuses"]]

    async def logs(self, of: OfCheck, context: ToolContext) -> ToolResult:
        """The end of a workflow's log. It is stored outside GitHub's API, where our token must not go."""
        client = await self.access.to(self.account, self.place.repository, LOGS)
        # A check that GitHub Actions made has the number of its job.
        address = await client.location(self.path(f"actions/jobs/{of.check}/logs"))
        assert self.account.http is not None
        lines = (await _download(self.account.http, address)).splitlines()
        shown = "\n".join(_LOG_NOISE.sub("", line) for line in lines[-of.lines :])
        cut = max(0, len(lines) - of.lines)
        more = f"{cut} lines before these were left out; ask for more `lines`." if cut else ""
        return ToolResult(markdown.plain(shown), truncated=bool(cut), more=more, untrusted=True)

    async def search(self, words: Words, context: ToolContext) -> ToolResult:
        client = await self.access.to(self.account, self.place.repository, READ)
        # Qualifiers can add places to a search; the tool may read this repository only.
        own = " ".join(word for word in words.query.split() if not _ELSEWHERE.match(word))
        kind = "is:issue" if words.kind == "issue" else "is:pull-request"
        query = f"repo:{self.place.repository} {kind} {own}"
        found = await client.get("/search/issues", q=query, per_page=20)
        here = f"/repos/{self.place.repository}".lower()
        lines = [
            f"#{one['number']} ({one['state']}) {self._title(one)}"
            for one in found["items"]
            if one["repository_url"].lower().endswith(here)
        ]
        return ToolResult("\n".join(lines) or "Nothing found.", untrusted=True)

    async def label(self, wanted: Labels, context: ToolContext) -> ToolResult:
        client = await self.access.to(self.account, self.place.repository, WRITE)
        asking = {self.settings.label.lower(), self.settings.plan_label.lower()}
        labels = [name for name in wanted.labels if name.lower() not in asking]
        if not labels:
            detail = f"With the label {wanted.labels[0]} people ask for work, so it is not put on."
            return ToolResult(detail, is_error=True)
        known = {name.lower() for name in self.settings.narrowed_labels}
        if context.narrowed and (others := [name for name in labels if name.lower() not in known]):
            detail = f"This run has read text by strangers, so it may not put on: {', '.join(others)}. It may put on: "
            return ToolResult(
                detail + (", ".join(self.settings.narrowed_labels) or "none") + ".", is_error=True
            )
        await client.post(self.path(f"issues/{self.place.number}/labels"), {"labels": labels})
        return ToolResult(f"Put on: {', '.join(labels)}.", progress=True)

    async def comment(self, wanted: Remark, context: ToolContext) -> ToolResult:
        client = await self.access.to(self.account, self.place.repository, WRITE)
        path = self.path(f"issues/{wanted.number}/comments")
        if not any(self.has_written(one, context, wanted.number) for one in await client.pages(path)):
            mark = self.mark(context, wanted.number)
            await client.post(path, {"body": f"{self.outgoing(context, wanted.body)}\n\n{mark}"})
        return ToolResult(f"Commented on #{wanted.number}.", progress=True)

    async def request_review(self, wanted: Logins, context: ToolContext) -> ToolResult:
        client = await self.access.to(self.account, self.place.repository, WRITE)
        pull = await self._own_pull() or {"number": self.place.number}
        path = self.path(f"pulls/{pull['number']}/requested_reviewers")
        await client.post(path, {"reviewers": list(wanted.logins)})
        return ToolResult(f"Asked {', '.join(wanted.logins)} for a review.", progress=True)

    async def checkout(self, wanted: Checkout, context: ToolContext) -> ToolResult:
        """Clone through the proxy and check out the conversation's own branch, from GitHub if it is there."""
        if context.shell is None:
            return ToolResult("There is no shell here.", is_error=True)
        found = await branches(self.access, self.account, self.message)
        if found is None:
            return ToolResult("Pull requests from forks are only read: use github_diff.", is_error=True)
        seed = await context.shell.seed(RULE)
        command = checkout(f"{self.settings.web_url}/{self.place.repository}.git", wanted.directory, found.own,
                           found.base, seed, self.settings.submodules)  # fmt: skip
        ran = await context.shell.run(command, timeout=min(300, context.seconds_left), tag=context.call_id)
        text = ran.output.decode("utf-8", "replace")
        done = ran.exit_code == 0
        where = f"Cloned into {wanted.directory}, on branch {found.own} (from {found.base})."
        said = "\n".join(filter(None, (where, found.note, text))) if done else text
        return ToolResult(said.strip(), is_error=not done, exit_code=ran.exit_code, progress=done)

    async def open_pull(self, wanted: Pull, context: ToolContext) -> ToolResult:
        found = await branches(self.access, self.account, self.message)
        if found is None:
            return ToolResult("A pull request from a fork is only read.", is_error=True)
        branch = wanted.branch or found.own
        if not found.may_push_to(branch):
            detail = f"The branches of this conversation are {' and '.join(found.allowed)}."
            return ToolResult(detail, is_error=True)
        if (acting := await self._acting(context, found.base, branch)) is not None:
            return acting
        client = await self.access.to(self.account, self.place.repository, OPEN_PULL)
        owner = self.place.repository.partition("/")[0]
        there = await client.get(self.path("pulls"), head=f"{owner}:{branch}", state="open")
        title, body = self.outgoing(context, wanted.title), self._pull_body(wanted, context)
        if there:
            made = await client.patch(
                self.path(f"pulls/{there[0]['number']}"), {"title": title, "body": body}
            )
            detail = f"Updated {made['html_url']} (#{made['number']})."
            return ToolResult(f"{detail}{await self._ask_asker(made)}", progress=True)
        new = {"title": title, "body": body, "head": branch, "base": found.base}
        try:
            made = await client.post(self.path("pulls"), {**new, "draft": True})
        except Permanent as error:
            if error.reason != "github.invalid" or "draft pull request" not in str(error).lower():
                raise
            return await self._open_ordinary(client, new)
        detail = f"Opened the draft {made['html_url']} (#{made['number']})."
        return ToolResult(f"{detail}{await self._ask_asker(made)}", progress=True)

    async def _acting(self, context: ToolContext, base: str, branch: str) -> ToolResult | None:
        """Refuse commits whose messages would act (close an issue, mention somebody) when a run here has read
        strangers' text: they would act in the name of whoever merges them."""
        client = await self.access.to(self.account, self.place.repository, READ)
        if not context.narrowed:
            ours = await client.pages(self.path(f"issues/{self.place.number}/comments"), most=3)
            if not any(self._ours(one) and self.has_strangers_words(one, self.place.number) for one in ours):
                return None
        people = (str(self.message.facts.get("login", "")),)
        found = await acting_commits(client, self.place, base, branch, people)
        if not found:
            return None
        why = "A run here has read text by strangers, and these commits mention people, command bots or close issues: "
        return ToolResult(f"{why}{', '.join(found)}. Reword their messages, and push again.", is_error=True)

    async def _ask_asker(self, pull: dict[str, Any]) -> str:
        """Request a review from whoever asked for the work, if GitHub allows it."""
        login = str(self.message.facts.get("login") or "")
        if not login or self.message.author.is_bot or login.lower() == login_of(pull).lower():
            return ""
        client = await self.access.to(self.account, self.place.repository, WRITE)
        try:
            path = self.path(f"pulls/{pull['number']}/requested_reviewers")
            await client.post(path, {"reviewers": [login]})
        except Permanent:
            return ""
        return f" {login} is asked for a review."

    async def _open_ordinary(self, client: Client, new: dict[str, Any]) -> ToolResult:
        """Open an ordinary pull request with a label, where drafts are not supported."""
        made = await client.post(self.path("pulls"), new)
        labelling = await self.access.to(self.account, self.place.repository, WRITE)
        detail = f"Opened {made['html_url']} (#{made['number']}). This repository has no draft pull requests"
        asked = await self._ask_asker(made)
        try:
            await labelling.post(self.path(f"issues/{made['number']}/labels"), {"labels": [DRAFT]})
        except Permanent:
            return ToolResult(f"{detail}, so it is an ordinary one.{asked}", progress=True)
        return ToolResult(f"{detail}, so it is an ordinary one with the label {DRAFT}.{asked}", progress=True)

    def _pull_body(self, wanted: Pull, context: ToolContext) -> str:
        closes = f"\n\nFixes #{self.place.number}" if self.message.kind == "issue" else ""
        if self.message.command == "goal":
            closes = f"\n\nPart of the goal whose checklist is in #{self.place.number}.{closes}"
        login = self.message.facts.get("login")
        asked = f"\n\nAsked for by @{login}." if login else ""
        parts = {"Why": wanted.why, "Tested": wanted.tested, "Uncertain": wanted.uncertain}
        body = "\n\n".join([wanted.changed, *(f"**{title}:** {text}" for title, text in parts.items())])
        body = self.outgoing(context, body)
        detail = ("pull", marks.NARROWED if context.narrowed else "")
        mark = marks.line(self.account, marks.elsewhere(self.place.repository), *detail)
        return f"{body}{closes}{asked}\n\n{mark}"

    async def _own_pull(self) -> dict[str, Any] | None:
        found = await branches(self.access, self.account, self.message)
        if found is None:
            return None
        client = await self.access.to(self.account, self.place.repository, READ)
        owner = self.place.repository.partition("/")[0]
        there = await client.get(self.path("pulls"), head=f"{owner}:{found.own}", state="open")
        return there[0] if there else None


async def _download(http: httpx2.AsyncClient, address: str) -> str:
    """The content at an address, or its end when there is too much."""
    held = bytearray()
    try:
        async with http.stream("GET", address) as response:
            if response.status_code != 200:
                raise Permanent(f"The log is not there ({response.status_code}).", reason="github.not_found")
            async for some in response.aiter_bytes():
                held += some
                if len(held) > MAX_LOG:
                    del held[: len(held) - MAX_LOG]
    except httpx2.TransportError as error:
        raise Temporary(f"The log cannot be fetched: {type(error).__name__}.", reason="unreachable") from None
    return held.decode("utf-8", "replace")


_REVIEWED = {"APPROVED": "approved", "CHANGES_REQUESTED": "requested changes", "COMMENTED": "reviewed"}


def _review_place(one: dict[str, Any]) -> str:
    """Where an entry of a review belongs: for a review its verdict; for a comment its number, its place, and what it
    answers."""
    if not one.get("path"):
        return f"review {one['id']}, {_REVIEWED[one['state']]}"
    thread = one.get("in_reply_to_id")
    detail = f"review comment {one['id']} on {reviews.place(one)}"
    return f"{detail}, in answer to {thread}" if thread else detail


def _by_file(files: list[dict[str, Any]]) -> str:
    """A diff that is too big for GitHub, file by file, with the patches that are not too big."""
    lines = [f"The diff is too big for GitHub to show as a whole. {len(files)} files changed:"]
    for one in files:
        lines.append(
            f"{one['status']} {markdown.line(one['filename'])} (+{one['additions']} -{one['deletions']})"
        )
    patches = [f"--- {markdown.line(one['filename'])}\n{one['patch']}" for one in files if one.get("patch")]
    return "\n".join([*lines, *patches])


def _check(run: dict[str, Any]) -> str:
    output = run.get("output") or {}
    summary = markdown.clean(str(output.get("summary") or ""))[:2000]
    title = markdown.line(str(output.get("title") or ""))
    ended = run["conclusion"] or run["status"]
    return f"{markdown.line(run['name'])} ({run['id']}): {ended} {title}\n{summary}".strip()


def _status(one: dict[str, Any]) -> str:
    more = (markdown.line(str(one.get(name) or "")) for name in ("description", "target_url"))
    return " ".join(filter(None, (f"{markdown.line(one['context'])} (a status): {one['state']}", *more)))


NAMES = frozenset(
    f"github_{name}"
    for name in (
        "read", "diff", "file", "checks", "logs", "search", "label", "reply", "resolve", "review", "comment",
        "request_review", "checkout", "open_pull",
    )
)  # fmt: skip


def tools(access: Access, account: ConnectionContext, message: Incoming) -> list[Tool[Any]]:
    """The tools of one conversation."""
    work = Work(access, account, message)
    names = chosen(message, work.settings).tools
    every = [*_all(work), *_about_reviews(ReviewTools(access, account, message))]
    return [tool for tool in every if "*" in names or tool.name in names]


def _all(work: Work) -> list[Tool[Any]]:
    return [
        _tool("github_read", "Read this issue or pull request, or another one of this repository, with its comments.",
              About, work.read, Tier.READ),
        _tool("github_diff", "Read a pull request's diff.", About, work.diff, Tier.READ),
        _tool("github_file", "Read a file of this repository at a branch, tag or commit.",
              OfFile, work.file, Tier.READ),
        _tool("github_checks", "Read how the checks of a pull request ended, and what they say.",
              About, work.checks, Tier.READ),
        _tool("github_logs", "Read the end of a workflow's log, by the number of its check.",
              OfCheck, work.logs, Tier.READ),
        _tool("github_search", "Search this repository's issues and pull requests.", Words, work.search, Tier.READ),
        # On a pull request, a label may be what workflows with secrets wait for.
        _tool("github_label", "Put labels on this issue or pull request.", Labels, work.label, Tier.WRITE,
              "outside" if work.message.kind == "pull" else "own"),
        _tool("github_comment", "Comment on another issue or pull request of this repository. Your answer here "
              "becomes a comment by itself.", Remark, work.comment, Tier.WRITE, "outside"),
        _tool("github_request_review", "Ask people to review this conversation's pull request.",
              Logins, work.request_review, Tier.WRITE, "outside"),
        _tool("github_checkout", "Clone the repository into the shell and go to this conversation's own branch. "
              "There git fetch, commit and push work as usual; push to this branch only. A clone that is there is "
              "brought up to date: when a push is refused because somebody else pushed, ask for this again.",
              Checkout, work.checkout, Tier.EXEC, timeout=600),
        _tool("github_open_pull", "Open a draft pull request from the pushed branch, or update the one that is there. "
              "`Fixes #n` is added by itself.", Pull, work.open_pull, Tier.WRITE),
    ]  # fmt: skip


def _about_reviews(work: ReviewTools) -> list[Tool[Any]]:
    return [
        _tool("github_reply", "Reply to a review comment in its thread, by the comment's number.",
              ThreadReply, work.reply, Tier.WRITE),
        _tool("github_resolve", "Resolve the thread of a review comment, by the comment's number, once it is dealt "
              "with.", ThreadOf, work.resolve, Tier.WRITE),
        _tool("github_review", "Review this pull request: one review with a summary and comments on lines of its diff. "
              "A suggestion is applied by people with one click, so it must be exactly what is to stand there. "
              "Line numbers are those of the files (new side) or of what was there before (old side), and must be "
              "in the diff. Submit one review, when you are done.", Review, work.review, Tier.WRITE),
    ]  # fmt: skip


def _tool(
    name: str,
    description: str,
    arguments: type[A],
    run: Callable[[A, ToolContext], Awaitable[ToolResult]],
    tier: Tier,
    reach: Reach = "own",
    timeout: float = 60,
) -> Tool[A]:
    return Tool(
        name, description, arguments, run, tier, timeout=timeout, parallel=tier is Tier.READ, reach=reach
    )
