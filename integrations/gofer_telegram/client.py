"""A thin client of the Bot API: one call, its answer, and every refusal as the error it is.

The token is part of every path, so it is put into the request's target only: no URL that a log, an error or a
trace may show contains it.
"""

from __future__ import annotations

import json
from typing import Any
from urllib.parse import quote, urlsplit

import httpx2

from gofer.errors import Permanent, Temporary
from gofer.integration import Account
from gofer_telegram.settings import Settings

REFUSED = (
    "Telegram refuses the bot token. Ask @BotFather for the current one (/mybots, API Token) and store it: "
    "gofer secrets put token --owner {connection}"
)
CONFLICT = (
    "Another program reads this bot's updates (409 Conflict). One token has one reader: stop the other program, or "
    "ask @BotFather for a new token (/revoke)."
)
# What Telegram's words for a lasting refusal mean; the first that is found counts.
_REASONS = (
    ("bot was blocked by the user", "blocked"),
    ("user is deactivated", "account_deleted"),
    ("can't initiate conversation", "never_started"),
    ("bot was kicked", "kicked"),
    ("not a member", "kicked"),
    ("chat not found", "chat_not_found"),
    ("chat_write_forbidden", "no_right_to_write"),
    ("not enough rights", "no_right_to_write"),
    ("have no rights", "no_right_to_write"),
    ("topic_closed", "topic_closed"),
    ("topic_deleted", "topic_deleted"),
    ("message thread not found", "topic_deleted"),
    ("message to edit not found", "message_deleted"),
)


class Rejected(Permanent):
    """Telegram will not do it, in its own words."""

    def __init__(self, description: str, *, reason: str = "rejected", moved_to: int | None = None) -> None:
        # Its own words are marked as such; ours name it anyway.
        ours = description.startswith("Telegram ")
        super().__init__(description if ours else f"Telegram: {description}", reason=reason)
        self.description = description
        self.moved_to = moved_to

    def says(self, *phrases: str) -> bool:
        """Whether its words contain one of these."""
        return any(phrase in self.description.lower() for phrase in phrases)


class Client:
    """Calls the Bot API for one account."""

    def __init__(self, account: Account) -> None:
        assert account.http is not None
        self.settings = Settings.model_validate(account.settings)
        self._http = account.http
        self._account = account
        self._token = account.secret("token")

    async def call(
        self,
        method: str,
        *,
        within: float | None = None,
        files: dict[str, tuple[str, bytes]] | None = None,
        **parameters: Any,
    ) -> Any:
        """A method's result, `within` seconds if given; raises Temporary or Rejected."""
        given = {name: value for name, value in parameters.items() if value is not None}
        body: dict[str, Any] = {"json": given}
        if files:
            body = {"data": {name: _form(value) for name, value in given.items()}, "files": files}
        response = await self._request("POST", f"bot{self._token}/{method}", method, within, **body)
        return self._result(response)

    async def download(self, file_id: str, *, at_most: int) -> bytes:
        """A file's bytes."""
        file = await self.call("getFile", file_id=file_id)
        path = str(file.get("file_path", "")) if isinstance(file, dict) else ""
        response = await self._request("GET", f"file/bot{self._token}/{quote(path)}", "file", 60)
        if response.status_code >= 500:
            raise Temporary(f"Telegram's file server answered {response.status_code}.")
        if response.is_error or not path:
            raise Rejected(f"the file cannot be had ({response.status_code})", reason="file_gone")
        if len(response.content) > at_most:
            raise Rejected("the file is too big", reason="file_too_big")
        return response.content

    async def _request(
        self, verb: str, target: str, shown: str, within: float | None, **body: Any
    ) -> httpx2.Response:
        base = urlsplit(self.settings.api_url)
        wanted = f"{base.path}/{target}".encode("ascii", "replace")
        extra: dict[str, Any] = {} if within is None else {"timeout": within}
        try:
            return await self._http.request(
                verb, f"{self.settings.api_url}/{shown}", extensions={"target": wanted}, **extra, **body
            )
        except httpx2.HTTPError as error:
            # Without the cause: it holds the request, and the request holds the token.
            raise Temporary(f"Telegram could not be reached ({type(error).__name__}).") from None
        except ValueError:
            raise Rejected("the bot token has characters no token has", reason="token_refused") from None

    def _result(self, response: httpx2.Response) -> Any:
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            raise Temporary(f"Telegram answered {response.status_code} without JSON.")
        if answer.get("ok") is True:
            return answer.get("result")
        raise self._error(response.status_code, answer)

    def _error(self, status: int, answer: dict[str, Any]) -> Exception:
        description = str(answer.get("description", ""))[:500].replace(self._token, "…")
        parameters = answer.get("parameters") if isinstance(answer.get("parameters"), dict) else {}
        assert isinstance(parameters, dict)
        if status == 429:
            after = parameters.get("retry_after")
            wait = float(after) if isinstance(after, int | float) else 5.0
            return Temporary(f"Telegram: {description}", reason="rate_limited", retry_after=wait)
        if status == 409:
            text = description if "webhook" in description.lower() else CONFLICT
            return Temporary(text, reason="conflict", retry_after=15)
        if status >= 500:
            return Temporary(f"Telegram: {status} {description}")
        if status in (401, 404):
            return Rejected(REFUSED.format(connection=self._account.id), reason="token_refused")
        moved = parameters.get("migrate_to_chat_id")
        reason = next((name for words, name in _REASONS if words in description.lower()), "rejected")
        return Rejected(description, reason=reason, moved_to=moved if isinstance(moved, int) else None)


def _form(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
