"""What an agent can do on GitHub. Everything is about the conversation's own repository; `reach` says what is
closed once a run has read strangers' words."""

from __future__ import annotations

import asyncio
import hashlib
import re
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import httpx2

from gofer.errors import Permanent, Temporary
from gofer.integration import Account, Incoming
from gofer.tool import Arguments, Reach, Tier, Tool, ToolContext, ToolResult
from gofer_github import cleaning
from gofer_github.access import LOGS, OPEN_PULL, READ, RESOLVE, WRITE, Access, moment
from gofer_github.cloning import checkout
from gofer_github.place import MARK, Place
from gofer_github.settings import Settings
from gofer_github.wishes import (
    About,
    Body,
    Checkout,
    Labels,
    Logins,
    Nothing,
    OfCheck,
    OfFile,
    Pull,
    Remark,
    Words,
)
from gofer_github.workflows import chosen
from gofer_github.workspace import RULE, branches

LONGEST_DIFF = 200_000
LONGEST_LOG = 8 * 1024 * 1024

_ELSEWHERE = re.compile(r"[(\\-]*(?:repo|org|user|enterprise|project|is):", re.I)
_LOG_NOISE = re.compile(r"^\ufeff?\d{4}-\d\d-\d\dT[\d:.]+Z ")
_THREADS = """query($owner: String!, $name: String!, $number: Int!) {
  repository(owner: $owner, name: $name) { pullRequest(number: $number) {
    reviewThreads(last: 100) { nodes { id comments(first: 1) { nodes { databaseId } } } } } } }"""
_RESOLVE = """mutation($thread: ID!) { resolveReviewThread(input: {threadId: $thread}) { thread { id } } }"""

A = TypeVar("A", bound=Arguments)


@dataclass(frozen=True, slots=True)
class Work:
    """The tools' view of one conversation."""

    access: Access
    account: Account
    message: Incoming

    @property
    def place(self) -> Place:
        return Place.of(self.message.conversation, self.message.lasting)

    @property
    def settings(self) -> Settings:
        return Settings.model_validate(self.account.settings)

    def path(self, rest: str) -> str:
        return f"/repos/{self.place.repository}/{rest}"

    async def read(self, about: About, context: ToolContext) -> ToolResult:
        number = about.number or self.place.number
        client = await self.access.to(self.account, self.place.repository, READ)
        issue = await client.get(self.path(f"issues/{number}"))
        comments = await client.pages(self.path(f"issues/{number}/comments"), most=3)
        if "pull_request" in issue:
            comments += await client.pages(self.path(f"pulls/{number}/comments"), most=3)
        kind = "Pull request" if "pull_request" in issue else "Issue"
        head = f"{kind} #{number} ({issue['state']}): {self._title(issue)}"
        labels = ", ".join(label["name"] for label in issue["labels"])
        said = await asyncio.to_thread(lambda: [self._said(one) for one in [issue, *comments]])
        text = "\n\n".join([head, f"Labels: {labels or 'none'}", *said])
        return ToolResult(text, untrusted=self._others([issue, *comments]))

    def _title(self, issue: dict[str, Any]) -> str:
        """An issue's title; of the request's own, the one that it had then."""
        title = cleaning.line(issue["title"])
        if issue["number"] != self.place.number:
            return "(changed after the request was made)" if self._late(issue) else title
        then = str(self.message.facts.get("title", title))
        if then == title or self._ours(issue):
            return title
        return f"{then} (as it was when the request was made)"

    def _said(self, one: dict[str, Any]) -> str:
        """One entry, unless it was changed after the request was made."""
        who = cleaning.line(one["user"]["login"], 60) if one.get("user") else "somebody"
        where = f" on {cleaning.line(one['path'], 300)}" if one.get("path") else ""
        if self._late(one):
            return f"--- {who}{where}: (changed after the request was made, so it is not shown)"
        return f"--- {who}{where}:\n{cleaning.clean((one['body'] or '').partition(MARK)[0])}"

    def _late(self, one: dict[str, Any]) -> bool:
        """Whether somebody else may have changed it since. Of the request's own issue we know how it was; another
        entry tells when it was last touched."""
        if self._ours(one):
            return False
        if one.get("number") == self.place.number:
            digest = hashlib.sha256((one["body"] or "").encode("utf-8", "replace")).hexdigest()
            return bool(self.message.facts.get("body", digest) != digest)
        asked = moment(str(self.message.facts.get("asked_at", "")))
        return bool(asked) and one["updated_at"] != one["created_at"] and moment(one["updated_at"]) > asked

    def _ours(self, one: dict[str, Any]) -> bool:
        return bool(one.get("user")) and self.settings.wrote(one["user"]["login"])

    def _others(self, entries: Sequence[dict[str, Any]]) -> bool:
        """Whether anybody but the requester and us wrote something of it."""
        requester = str(self.message.facts.get("login", "")).lower()
        logins = {str((one.get("user") or {}).get("login", "")).lower() for one in entries}
        return any(login != requester and not self.settings.wrote(login) for login in logins)

    async def diff(self, about: About, context: ToolContext) -> ToolResult:
        client = await self.access.to(self.account, self.place.repository, READ)
        number = about.number or self.place.number
        try:
            text = await client.text(self.path(f"pulls/{number}"), "application/vnd.github.diff")
        except Permanent as error:
            if error.reason != "github.too_big":
                raise
            text = _by_file(await client.pages(self.path(f"pulls/{number}/files"), most=30))
        cut = len(text) > LONGEST_DIFF
        more = (
            f"{len(text) - LONGEST_DIFF} characters were left out; check the branch out to see them."
            if cut
            else ""
        )
        return ToolResult(text[:LONGEST_DIFF], truncated=cut, more=more, untrusted=True)

    async def file(self, of: OfFile, context: ToolContext) -> ToolResult:
        client = await self.access.to(self.account, self.place.repository, READ)
        path = "/".join(part for part in of.path.split("/") if part not in ("", ".", ".."))
        text = await client.file(self.place.repository, path, of.ref)
        # The default branch is the maintainers' own; anything else may be anybody's.
        return ToolResult(text[:LONGEST_DIFF], truncated=len(text) > LONGEST_DIFF, untrusted=bool(of.ref))

    async def checks(self, about: About, context: ToolContext) -> ToolResult:
        number = about.number or self.place.number
        client = await self.access.to(self.account, self.place.repository, READ)
        pull = await client.get(self.path(f"pulls/{number}"))
        logs = await self.access.to(self.account, self.place.repository, LOGS)
        runs = await logs.pages(
            self.path(f"commits/{pull['head']['sha']}/check-runs"), key="check_runs", most=2
        )
        lines = await asyncio.to_thread(lambda: [_check(run) for run in runs])
        return ToolResult("\n".join(lines) or "There are no checks on it.", untrusted=True)

    async def logs(self, of: OfCheck, context: ToolContext) -> ToolResult:
        """The end of a workflow's log. It lies at a storage of GitHub's, to which our token must not go."""
        client = await self.access.to(self.account, self.place.repository, LOGS)
        # A check that GitHub Actions made has the number of its job.
        address = await client.location(self.path(f"actions/jobs/{of.check}/logs"))
        assert self.account.http is not None
        lines = (await _download(self.account.http, address)).splitlines()
        shown = "\n".join(_LOG_NOISE.sub("", line) for line in lines[-of.lines :])
        cut = max(0, len(lines) - of.lines)
        more = f"{cut} lines before these were left out; ask for more `lines`." if cut else ""
        return ToolResult(cleaning.plain(shown), truncated=bool(cut), more=more, untrusted=True)

    async def search(self, words: Words, context: ToolContext) -> ToolResult:
        client = await self.access.to(self.account, self.place.repository, READ)
        # Qualifiers that name places add them to the search; only this repository is ours to read.
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

    async def resolve(self, wanted: Nothing, context: ToolContext) -> ToolResult:
        thread = self.message.facts.get("thread")
        if not thread:
            return ToolResult("This request came from no review thread.", is_error=True)
        client = await self.access.to(self.account, self.place.repository, RESOLVE)
        owner, _, name = self.place.repository.partition("/")
        found = await client.graphql(_THREADS, owner=owner, name=name, number=self.place.number)
        for one in found["repository"]["pullRequest"]["reviewThreads"]["nodes"]:
            if any(comment["databaseId"] == thread for comment in one["comments"]["nodes"]):
                await client.graphql(_RESOLVE, thread=one["id"])
                return ToolResult("Resolved the thread.", progress=True)
        return ToolResult("The thread is gone.", is_error=True)

    async def label(self, wanted: Labels, context: ToolContext) -> ToolResult:
        client = await self.access.to(self.account, self.place.repository, WRITE)
        labels = [name for name in wanted.labels if name.lower() != self.settings.label.lower()]
        await client.post(self.path(f"issues/{self.place.number}/labels"), {"labels": labels})
        return ToolResult(f"Put on: {', '.join(labels) or 'nothing'}.", progress=True)

    async def reply(self, wanted: Body, context: ToolContext) -> ToolResult:
        thread = self.message.facts.get("thread")
        if not thread:
            return ToolResult(
                "This request is no review comment; the answer goes below it by itself.", is_error=True
            )
        client = await self.access.to(self.account, self.place.repository, WRITE)
        mark = _mark(context)
        known = await client.pages(self.path(f"pulls/{self.place.number}/comments"))
        if not any(mark in one["body"] for one in known):
            path = self.path(f"pulls/{self.place.number}/comments/{thread}/replies")
            await client.post(path, {"body": f"{wanted.body}\n\n{mark}"})
        return ToolResult("Replied in the thread.", progress=True)

    async def comment(self, wanted: Remark, context: ToolContext) -> ToolResult:
        client = await self.access.to(self.account, self.place.repository, WRITE)
        path, mark = self.path(f"issues/{wanted.number}/comments"), _mark(context)
        if not any(mark in one["body"] for one in await client.pages(path)):
            await client.post(path, {"body": f"{wanted.body}\n\n{mark}"})
        return ToolResult(f"Commented on #{wanted.number}.", progress=True)

    async def request_review(self, wanted: Logins, context: ToolContext) -> ToolResult:
        client = await self.access.to(self.account, self.place.repository, WRITE)
        pull = await self._own_pull() or {"number": self.place.number}
        path = self.path(f"pulls/{pull['number']}/requested_reviewers")
        await client.post(path, {"reviewers": list(wanted.logins)})
        return ToolResult(f"Asked {', '.join(wanted.logins)} for a review.", progress=True)

    async def checkout(self, wanted: Checkout, context: ToolContext) -> ToolResult:
        """Clone through the proxy and go to the conversation's own branch, as it is at GitHub if it is there."""
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
        said = (
            f"Cloned into {wanted.directory}, on branch {found.own} (from {found.base}).\n{text}"
            if done
            else text
        )
        return ToolResult(said.strip(), is_error=not done, exit_code=ran.exit_code, progress=done)

    async def open_pull(self, wanted: Pull, context: ToolContext) -> ToolResult:
        found = await branches(self.access, self.account, self.message)
        if found is None:
            return ToolResult("A pull request from a fork is only read.", is_error=True)
        branch = wanted.branch or found.own
        if not found.may_push_to(branch):
            told = f"The branches of this conversation are {' and '.join(found.allowed)}."
            return ToolResult(told, is_error=True)
        client = await self.access.to(self.account, self.place.repository, OPEN_PULL)
        owner = self.place.repository.partition("/")[0]
        there = await client.get(self.path("pulls"), head=f"{owner}:{branch}", state="open")
        body = self._pull_body(wanted)
        if there:
            made = await client.patch(
                self.path(f"pulls/{there[0]['number']}"), {"title": wanted.title, "body": body}
            )
            return ToolResult(f"Updated {made['html_url']} (#{made['number']}).", progress=True)
        new = {"title": wanted.title, "body": body, "head": branch, "base": found.base, "draft": True}
        made = await client.post(self.path("pulls"), new)
        return ToolResult(f"Opened the draft {made['html_url']} (#{made['number']}).", progress=True)

    def _pull_body(self, wanted: Pull) -> str:
        closes = f"\n\nFixes #{self.place.number}" if self.message.kind == "issue" else ""
        login = self.message.facts.get("login")
        asked = f"\n\nAsked for by @{login}." if login else ""
        parts = {"Why": wanted.why, "Tested": wanted.tested, "Uncertain": wanted.uncertain}
        body = "\n\n".join([wanted.changed, *(f"**{title}:** {text}" for title, text in parts.items())])
        return f"{body.replace(MARK, '<!-- ')}{closes}{asked}\n\n{MARK} pull -->"

    async def _own_pull(self) -> dict[str, Any] | None:
        found = await branches(self.access, self.account, self.message)
        if found is None:
            return None
        client = await self.access.to(self.account, self.place.repository, READ)
        owner = self.place.repository.partition("/")[0]
        there = await client.get(self.path("pulls"), head=f"{owner}:{found.own}", state="open")
        return there[0] if there else None


def _mark(context: ToolContext) -> str:
    return f"{MARK} call-{hashlib.sha256(context.call_id.encode()).hexdigest()[:16]} -->"


async def _download(http: httpx2.AsyncClient, address: str) -> str:
    """What lies at an address; its end, if there is too much of it."""
    held = bytearray()
    try:
        async with http.stream("GET", address) as response:
            if response.status_code != 200:
                raise Permanent(f"The log is not there ({response.status_code}).", reason="github.not_found")
            async for some in response.aiter_bytes():
                held += some
                if len(held) > LONGEST_LOG:
                    del held[: len(held) - LONGEST_LOG]
    except httpx2.TransportError as error:
        raise Temporary(f"The log cannot be fetched: {type(error).__name__}.", reason="unreachable") from None
    return held.decode("utf-8", "replace")


def _by_file(files: list[dict[str, Any]]) -> str:
    """What GitHub shows of a diff that is too big to be shown: each file, with its patch where that is not."""
    lines = [f"The diff is too big for GitHub to show as a whole. {len(files)} files changed:"]
    for one in files:
        lines.append(
            f"{one['status']} {cleaning.line(one['filename'])} (+{one['additions']} -{one['deletions']})"
        )
    patches = [f"--- {cleaning.line(one['filename'])}\n{one['patch']}" for one in files if one.get("patch")]
    return "\n".join([*lines, *patches])


def _check(run: dict[str, Any]) -> str:
    output = run.get("output") or {}
    summary = cleaning.clean(str(output.get("summary") or ""))[:2000]
    title = cleaning.line(str(output.get("title") or ""))
    ended = run["conclusion"] or run["status"]
    return f"{cleaning.line(run['name'])} ({run['id']}): {ended} {title}\n{summary}".strip()


NAMES = frozenset(
    f"github_{name}"
    for name in (
        "read", "diff", "file", "checks", "logs", "search", "label", "reply", "resolve", "comment",
        "request_review", "checkout", "open_pull",
    )
)  # fmt: skip


def tools(access: Access, account: Account, message: Incoming) -> list[Tool[Any]]:
    """The tools of one conversation."""
    work = Work(access, account, message)
    names = chosen(message, work.settings).tools
    return [tool for tool in _all(work) if "*" in names or tool.name in names]


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
        _tool("github_reply", "Reply in the review thread that this request came from.", Body, work.reply, Tier.WRITE),
        _tool("github_resolve", "Resolve the review thread that this request came from, once it is dealt with.",
              Nothing, work.resolve, Tier.WRITE),
        _tool("github_comment", "Comment on another issue or pull request of this repository. Your answer here "
              "becomes a comment by itself.", Remark, work.comment, Tier.WRITE, "outside"),
        _tool("github_request_review", "Ask people to review this conversation's pull request.",
              Logins, work.request_review, Tier.WRITE, "outside"),
        _tool("github_checkout", "Clone the repository into the shell and go to this conversation's own branch. "
              "There git fetch, commit and push work as usual; push to this branch only.",
              Checkout, work.checkout, Tier.EXEC, timeout=600),
        _tool("github_open_pull", "Open a draft pull request from the pushed branch, or update the one that is there. "
              "`Fixes #n` is added by itself.", Pull, work.open_pull, Tier.WRITE),
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
