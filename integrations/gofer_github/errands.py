"""Work asked for somewhere else, such as in a chat: an issue that we open for somebody, and then work on.

GitHub tells us of our own issue like of any other. What makes it a request is the hidden mark: signed with the
webhook's secret, it names the person whose wish it is. Their permission is looked up twice, here and when it arrives.
"""

from __future__ import annotations

import hashlib
import hmac
import re
import secrets

from pydantic import Field

from gofer.errors import Permanent
from gofer.integration import Account
from gofer.tool import Arguments, Tier, Tool, ToolContext, ToolResult
from gofer_github.access import READ, WRITE, Access
from gofer_github.client import is_missing
from gofer_github.people import MAY_WRITE, permission_of
from gofer_github.place import MARK, is_repository
from gofer_github.settings import Settings

_MARKED = re.compile(
    re.escape(MARK)
    + r" errand=([0-9a-f]{16}) for=([0-9]{1,18}) login=([A-Za-z0-9_-]{1,39}) sign=([0-9a-f]{64}) -->"
)


class Errand(Arguments):
    """Something to be done in a repository."""

    repository: str = Field(min_length=3, max_length=140, description="owner/name")
    title: str = Field(min_length=1, max_length=200)
    text: str = Field(min_length=1, max_length=20_000, description="What is to be done, and all that helps.")


def marked(account: Account, repository: str, subject: str, login: str) -> str:
    """The hidden line that makes an issue of ours somebody's request."""
    chance = secrets.token_hex(8)
    sign = _sign(account, repository, chance, subject, login)
    return f"{MARK} errand={chance} for={subject} login={login} sign={sign} -->"


def asked_by(account: Account, repository: str, body: str) -> tuple[int, str] | None:
    """Whose wish an issue of ours is: their number and login; None when it is nobody's."""
    found = _MARKED.search(body)
    if found is None:
        return None
    chance, subject, login, sign = found.groups()
    right = hmac.compare_digest(sign, _sign(account, repository, chance, subject, login))
    return (int(subject), login) if right else None


def without_mark(body: str) -> str:
    return _MARKED.sub("", body).strip()


def _sign(account: Account, *parts: str) -> str:
    key = account.secret("webhook_secret").encode()
    return hmac.new(key, "\n".join(("errand", *parts)).encode(), hashlib.sha256).hexdigest()


def errand_tool(access: Access, account: Account, subject: str) -> Tool[Errand]:
    """Opens an issue for somebody who is known by their number, and has it worked on there."""

    async def run(wanted: Errand, context: ToolContext) -> ToolResult:
        settings = Settings.model_validate(account.settings)
        if not is_repository(wanted.repository) or not settings.hears(wanted.repository):
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
        mark = marked(account, wanted.repository, subject, login)
        body = f"{wanted.text.replace(MARK, '<!-- ')}\n\nAsked for by @{login} in a chat.\n\n{mark}"
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
