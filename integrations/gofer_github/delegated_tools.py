"""Work asked for somewhere else, such as in a chat: an issue that we open for somebody, and then work on.

GitHub tells us of our own issue like of any other. What makes it a request is the mark in its last line: it names the
person who asked, is valid for this repository and these words alone, and counts once. Their permission is looked
up twice, here and when it arrives.
"""

from __future__ import annotations

import hashlib
import re
import secrets
from dataclasses import dataclass

from pydantic import Field

from gofer.errors import Permanent
from gofer.integration import ConnectionContext
from gofer.tool import Arguments, Tier, Tool, ToolContext, ToolResult
from gofer_github import marks
from gofer_github.access import READ, WRITE, Access
from gofer_github.client import is_missing
from gofer_github.people import MAY_WRITE, permission_of
from gofer_github.place import is_repository
from gofer_github.settings import Settings

_LOGIN = re.compile(r"[A-Za-z0-9_-]{1,39}")


class Errand(Arguments):
    """Something to be done in a repository."""

    repository: str = Field(min_length=3, max_length=140, description="owner/name")
    title: str = Field(min_length=1, max_length=200)
    text: str = Field(min_length=1, max_length=20_000, description="What is to be done, and all that helps.")


@dataclass(frozen=True, slots=True)
class DelegatedRequest:
    """Who asked for an issue that Gofer opened."""

    id: str
    """Unique, so that the request counts once."""
    subject: int
    login: str


def marked(
    account: ConnectionContext, repository: str, subject: str, login: str, title: str, text: str
) -> str:
    """The hidden line that makes an issue of ours, with these words, somebody's request."""
    return marks.line(
        account, marks.elsewhere(repository), f"errand={secrets.token_hex(8)}", f"for={subject}", f"login={login}",
        f"words={_digest(title, text)}",
    )  # fmt: skip


def asked_by(account: ConnectionContext, repository: str, title: str, body: str) -> DelegatedRequest | None:
    """Who asked for an issue that Gofer opened; None when nobody did."""
    found = marks.words(account, marks.elsewhere(repository), body)
    id_, subject, login, words = (marks.value(found, name) for name in ("errand", "for", "login", "words"))
    if not id_ or not subject.isdigit() or not _LOGIN.fullmatch(login):
        return None
    return (
        DelegatedRequest(id_, int(subject), login) if words == _digest(title, marks.without(body)) else None
    )


def _digest(title: str, text: str) -> str:
    """Of the words as they are read: GitHub may write line ends in another way."""
    normalized = "\n".join(" ".join(part.split()) for part in (title, text))
    return hashlib.sha256(normalized.encode("utf-8", "replace")).hexdigest()[:32]


def ask_tool(access: Access, account: ConnectionContext, subject: str) -> Tool[Errand]:
    """Opens an issue for somebody who is known by their number, and has it worked on there."""

    async def run(wanted: Errand, context: ToolContext) -> ToolResult:
        settings = Settings.model_validate(account.settings)
        if not is_repository(wanted.repository) or not settings.covers(wanted.repository):
            return ToolResult(
                f"{wanted.repository} is not among the repositories of this connection.", is_error=True
            )
        try:
            client = await access.to(account, wanted.repository, READ)
            login = str((await client.get(f"/user/{subject}"))["login"])
            permission = await permission_of(client, wanted.repository, login, subject)
        except Permanent as error:
            if not is_missing(error):
                raise
            return ToolResult(f"The App is not installed on {wanted.repository}.", is_error=True)
        if permission not in MAY_WRITE:
            return ToolResult(f"{login} may not write to {wanted.repository} ({permission}).", is_error=True)
        text = f"{wanted.text}\n\nAsked for by @{login} in a chat."
        mark = marked(account, wanted.repository, subject, login, wanted.title, text)
        body = f"{text}\n\n{mark}"
        writing = await access.to(account, wanted.repository, WRITE)
        made = await writing.post(f"/repos/{wanted.repository}/issues", {"title": wanted.title, "body": body})
        return ToolResult(f"Opened {made['html_url']}. The work goes on there by itself.", progress=True)

    return Tool(
        "github_ask",
        "Have work done in a repository on GitHub: opens an issue there, which is then worked on in its own "
        "conversation, up to a draft pull request. Tell the person where it is.",
        Errand,
        run,
        Tier.NETWORK,
        reach="outside",
    )
