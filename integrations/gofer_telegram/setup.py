"""Set up a bot: its commands, and a webhook or polling. Check its health."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Sequence
from typing import Any
from urllib.parse import urlsplit

from gofer.errors import Temporary
from gofer.integration import COMMANDS, ConnectionContext, Health, Request
from gofer_telegram.client import Client, Rejected
from gofer_telegram.updates import WANTED

POLL_SECONDS = 25
STALLED_AFTER = POLL_SECONDS + 10
"""Seconds after which a poll that brought neither updates nor an empty answer is given up."""
MAX_WAIT, MAX_WAITS = 15, 3
"""Seconds that a set-up waits when Telegram says so, and how often."""
WEBHOOK_FIX = "Look whether GOFER_PUBLIC_URL is an HTTPS address that Telegram can reach, then restart."
FOREIGN_WEBHOOK = (
    "This bot's updates go to another program's webhook ({url}). Remove it there, or let this connection take the "
    "bot over: gofer connections enable {connection}"
)
PRIVACY = (
    " In groups it sees only what is meant for it (privacy mode); to let it follow all talk, send /setprivacy to "
    "@BotFather, choose Disable, and add the bot to the group again."
)


async def set_up(account: ConnectionContext) -> Health:
    """Check the token, see to how updates come in, then offer the commands. Drops nothing that waits at Telegram.

    What the bot cannot work without comes first, and the commands, without which it can, fail nothing.
    """
    client = Client(account)
    me = await _patiently(client, "getMe")
    name = str(me.get("username", "")) if isinstance(me, dict) else ""
    learned = {"username": name}
    try:
        way = await _receive(client, account)
    except Rejected as error:
        return Health(False, f"@{name} cannot receive updates. {error}", fix=WEBHOOK_FIX, learned=learned)
    hint = "" if me.get("can_read_all_group_messages") else PRIVACY
    missing = await _offer_commands(client)
    return Health(True, f"@{name} is ready: {way}.{missing}{hint}", learned=learned)


async def _receive(client: Client, account: ConnectionContext) -> str:
    """Set the webhook, or remove it so that updates can be polled."""
    if account.hook_url is None:
        await _patiently(client, "deleteWebhook", drop_pending_updates=False)
        return "updates are fetched by long polling, since GOFER_PUBLIC_URL is not set"
    await _patiently(
        client,
        "setWebhook",
        url=account.hook_url,
        secret_token=account.secret("webhook_secret"),
        allowed_updates=list(WANTED),
        drop_pending_updates=False,
    )
    return f"updates are pushed to {account.hook_url}"


async def _patiently(client: Client, method: str, **parameters: Any) -> Any:
    """A call that waits when Telegram says for how long, if that is not long; a job comes back for the rest."""
    for _ in range(MAX_WAITS):
        try:
            return await client.call(method, **parameters)
        except Temporary as error:
            if error.retry_after is None or error.retry_after > MAX_WAIT or error.reason == "conflict":
                raise
            await asyncio.sleep(error.retry_after)
    return await client.call(method, **parameters)


async def _offer_commands(client: Client) -> str:
    """Set the menu of commands. They also work without it, so a failure only returns a remark."""
    public = [command for command in COMMANDS if not command.private]
    try:
        for scope, offered in (("all_private_chats", COMMANDS), ("all_group_chats", public)):
            menu = [{"command": command.name, "description": command.help} for command in offered]
            await _patiently(client, "setMyCommands", commands=menu, scope={"type": scope})
    except (Rejected, Temporary) as error:
        return f" Its commands work, but are not in the menu yet: {error}"
    return ""


async def tear_down(account: ConnectionContext) -> None:
    """Undo the set-up. Pending updates stay at Telegram."""
    client = Client(account)
    await _patiently(client, "deleteWebhook", drop_pending_updates=False)
    for scope in ("all_private_chats", "all_group_chats"):
        with contextlib.suppress(Rejected, Temporary):
            await client.call("deleteMyCommands", scope={"type": scope})


async def health(account: ConnectionContext) -> Health:
    """Who the bot is, how its updates come in, how many wait, and what Telegram last complained about."""
    client = Client(account)
    try:
        me = await client.call("getMe")
        info = await client.call("getWebhookInfo")
    except Rejected as error:
        return Health(False, str(error), fix=f"gofer secrets put token --owner {account.id}")
    except Temporary as error:
        way = f"the proxy {client.settings.proxy}, and it reaches " if client.settings.proxy else ""
        return Health(False, str(error), fix=f"Look whether this machine reaches {way}the Bot API server.")
    return _judge(account, f"@{me.get('username', '')}", info)


def _judge(account: ConnectionContext, name: str, info: dict[str, Any]) -> Health:
    url, waiting = str(info.get("url", "")), int(info.get("pending_update_count", 0))
    again = f"gofer connections enable {account.id}"
    if account.hook_url is not None and url != account.hook_url:
        what = f"its webhook is {url}" if url else "it has no webhook"
        return Health(
            False, f"{name}: {what}, but should be {account.hook_url}; {waiting} waiting.", fix=again
        )
    if account.hook_url is None and url:
        return Health(False, _foreign(url, account), fix=again)
    way = "webhook" if url else "long polling"
    complaint = str(info.get("last_error_message", ""))
    since = int(info.get("last_error_date", 0))
    if complaint and (waiting or time.time() - since < 600):
        return Health(
            False,
            f"{name}: {way}, {waiting} waiting; Telegram's last error: {complaint}",
            fix="Look whether GOFER_PUBLIC_URL reaches this server over HTTPS with a valid certificate.",
        )
    return Health(True, f"{name}: {way}, {waiting} waiting.")


def _foreign(url: str, account: ConnectionContext) -> str:
    """Only the host of a URL: paths may hold secrets."""
    return FOREIGN_WEBHOOK.format(url=urlsplit(url).netloc, connection=account.id)


async def poll(account: ConnectionContext, last: str | None) -> Sequence[Request]:
    """Wait for updates after the last stored one. The offset confirms updates, so it is never guessed."""
    client = Client(account)
    offset = int(last) + 1 if last is not None and last.isdigit() else None
    try:
        found = await client.call(
            "getUpdates",
            within=STALLED_AFTER,
            timeout=POLL_SECONDS,
            offset=offset,
            allowed_updates=list(WANTED),
        )
    except Temporary as error:
        if error.reason != "conflict" or "webhook" not in str(error).lower():
            raise
        await _remove_own_webhook(client, account)
        return ()
    return [Request(json.dumps(update).encode()) for update in found if isinstance(update, dict)]


async def _remove_own_webhook(client: Client, account: ConnectionContext) -> None:
    """After a switch to polling, remove our old webhook, but not another program's."""
    url = str((await client.call("getWebhookInfo")).get("url", ""))
    if url and not url.endswith(f"/hooks/{account.id}"):
        raise Temporary(_foreign(url, account), reason="conflict", retry_after=60)
    await client.call("deleteWebhook", drop_pending_updates=False)
