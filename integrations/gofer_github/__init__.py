"""GitHub: from a mention on an issue to a reviewed pull request. docs/integrations/github.md is its page."""

from __future__ import annotations

import asyncio
import json
import weakref
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from gofer.integration import (
    Admission,
    ConnectionContext,
    Health,
    Incoming,
    Integration,
    Outgoing,
    Parsed,
    Progress,
    Request,
    SecretField,
    ShellAccess,
    SignUp,
    Unread,
)
from gofer.tool import Tool
from gofer_github import (
    people,
    redelivery,
    replies,
    repository_access,
    setup,
    tools,
    triggers,
    webhook,
    workflows,
)
from gofer_github.access import Access
from gofer_github.delegated_tools import ask_tool
from gofer_github.settings import Settings

SIGNATURE = "x-hub-signature-256"
PROJECT = "https://github.com/"
"""The homepage of an App whose Gofer has no address of its own."""


class GitHub(Integration):
    """Issues, pull requests and their reviews."""

    name = "github"
    summary = "Works on issues and pull requests: mention it, label them, or ask for a review."
    secrets = (
        SecretField(
            "webhook_secret", "Signs each webhook; the same as in the App's settings.", generated=True
        ),
        SecretField("private_key", "The App's private key (PEM).", optional=True),
        SecretField("token", "A fine-grained token, where no App can be installed.", optional=True),
    )
    settings = Settings
    secret_headers = frozenset({SIGNATURE, "x-hub-signature"})
    names_are_unique = True
    same_body_window = 86_400
    can_catch_up = True
    can_poll = True
    can_sign_up = True
    progress_every = 10
    command_prefix = f"/{triggers.COMMAND} "
    shows_run_summary = True
    tool_names = tools.NAMES | {"github_ask"}

    def __init__(self) -> None:
        self._access = Access()
        self._replies = replies.Replies(self._access)
        self._missed = redelivery.Missed(self._access)
        self._turns: weakref.WeakValueDictionary[str, asyncio.Lock] = weakref.WeakValueDictionary()

    def verify(self, request: Request, account: ConnectionContext) -> None:
        request.check_hmac(SIGNATURE, account.secret("webhook_secret"), prefix="sha256=")

    def parse(self, request: Request, account: ConnectionContext) -> Parsed:
        return webhook.parse(request, account)

    def split(self, text: str) -> Sequence[str]:
        return replies.split(text)

    def rename_conversation(self, settings: Mapping[str, Any], old: str, new: str) -> dict[str, Any]:
        known = Settings.model_validate(settings)
        names = tuple(new if name.lower() == old.lower() else name for name in known.repositories)
        return known.model_copy(update={"repositories": names}).model_dump(mode="json")

    async def admit(self, unread: Unread, account: ConnectionContext) -> Admission:
        return await people.admit(unread, account, self._access)

    async def find(self, outgoing: Outgoing, account: ConnectionContext) -> str | None:
        with replies.saying_if_gone(outgoing.conversation):
            return await self._replies.find(outgoing, account)

    async def place(self, outgoing: Outgoing, account: ConnectionContext) -> str:
        async with self._turn(account, outgoing.conversation):
            with replies.saying_if_gone(outgoing.conversation):
                return await self._replies.place(outgoing, account)

    async def complete(self, outgoing: Outgoing, external_id: str, account: ConnectionContext) -> None:
        async with self._turn(account, outgoing.conversation):
            with replies.saying_if_gone(outgoing.conversation):
                await self._replies.complete(outgoing, external_id, account)

    async def acknowledge(self, message: Incoming, account: ConnectionContext) -> None:
        await self._replies.acknowledge(message, account)

    async def show_progress(
        self, conversation: str, progress: Progress, shown: str, account: ConnectionContext
    ) -> str:
        async with self._turn(account, conversation):
            return await self._replies.show_progress(conversation, progress, shown, account)

    def sign_up(
        self,
        settings: Mapping[str, Any],
        *,
        name: str,
        owner: str,
        hook_url: str | None,
        back_url: str,
        homepage: str,
        state: str,
    ) -> SignUp:
        known = Settings.model_validate(settings)
        wanted = setup.manifest(name or "gofer", hook_url, back_url, homepage or PROJECT)
        asks = {f"{what}: {level}": why for what, (level, why) in setup.PERMISSIONS.items()}
        asks |= {f"event {kind}": why for kind, why in setup.EVENTS.items()}
        page = setup.manifest_page(known, state, owner)
        return SignUp(page, {"manifest": json.dumps(wanted)}, asks)

    async def finish_setup(
        self, settings: Mapping[str, Any], code: str
    ) -> tuple[Mapping[str, Any], Mapping[str, str]]:
        return await setup.convert(Settings.model_validate(settings), code)

    async def set_up(self, account: ConnectionContext) -> Health:
        return await setup.set_up(self._access, account)

    async def health(self, account: ConnectionContext) -> Health:
        return await setup.health(self._access, account)

    async def poll(self, account: ConnectionContext, last: str | None) -> Sequence[Request]:
        return await redelivery.poll(self._access, account, last)

    def catch_up(self, account: ConnectionContext, since: float) -> AsyncIterator[Request]:
        return self._missed.since(account, since)

    def tools(self, account: ConnectionContext, message: Incoming) -> Sequence[Tool[Any]]:
        return tools.tools(self._access, account, message)

    def limits(self, account: ConnectionContext, message: Incoming) -> Mapping[str, float]:
        found = workflows.chosen(message, Settings.model_validate(account.settings)).limits
        return found.model_dump(exclude_none=True)

    def delegated_tools(self, account: ConnectionContext, subject: str) -> Sequence[Tool[Any]]:
        return (ask_tool(self._access, account, subject),)

    async def shell_access(self, message: Incoming, account: ConnectionContext) -> ShellAccess:
        return await repository_access.shell_access(self._access, account, message)

    def _turn(self, account: ConnectionContext, conversation: str) -> asyncio.Lock:
        """One writer of a place's sticky comment at a time, so that late progress never covers an answer."""
        return self._turns.setdefault(f"{account.id} {conversation}", asyncio.Lock())


integration = GitHub()
