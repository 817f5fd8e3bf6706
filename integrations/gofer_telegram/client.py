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
from gofer.integration import ConnectionContext
from gofer_telegram.markdown import clean
from gofer_telegram.settings import Settings

REFUSED = (
    "Telegram refuses the bot token. Ask @BotFather for the current one (/mybots, API Token) and store it: "
    "gofer secrets put token --owner {connection}"
)
NOT_THERE = (
    "{url} knows no bot by this token (404). If the token is the current one, look whether api_url is the address "
    "of a Bot API server: gofer connections set {connection} api_url=https://api.telegram.org"
)
UNKNOWN_METHOD = "the server at {url} does not know this method (404)"
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
    """Telegram refused a call, in its own words."""

    def __init__(
        self, description: str, *, reason: str = "rejected", method: str = "", moved_to: int | None = None
    ) -> None:
        super().__init__(f"Telegram: {method}: {description}" if method else description, reason=reason)
        self.description = description
        self.moved_to = moved_to

    def says(self, *phrases: str) -> bool:
        """Whether its words contain one of these."""
        return any(phrase in self.description.lower() for phrase in phrases)


class Client:
    """Calls the Bot API for one account."""

    def __init__(self, account: ConnectionContext) -> None:
        assert account.http is not None
        self.settings = Settings.model_validate(account.settings)
        self._http = account.proxied or account.http
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
        given = {name: _cleaned(value) for name, value in parameters.items() if value is not None}
        body: dict[str, Any] = {"json": given}
        if files:
            body = {"data": {name: _form(value) for name, value in given.items()}, "files": files}
        response = await self._request("POST", f"bot{self._token}/{method}", method, within, **body)
        return self._result(method, response)

    async def download(self, file_id: str, *, at_most: int) -> bytes:
        """A file's bytes."""
        file = await self.call("getFile", file_id=file_id)
        path = str(file.get("file_path", "")) if isinstance(file, dict) else ""
        response = await self._request("GET", f"file/bot{self._token}/{quote(path)}", "file", 60)
        if response.status_code >= 500:
            raise Temporary(f"Telegram's file server answered {response.status_code}.")
        if response.is_error or not path:
            gone = f"the file cannot be had ({response.status_code})"
            raise Rejected(gone, reason="file_gone", method="file")
        if len(response.content) > at_most:
            raise Rejected("the file is too big", reason="file_too_big", method="file")
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
            way = f" through the proxy {self.settings.proxy}" if self.settings.proxy else ""
            words = f"Telegram: {shown}: could not be reached{way} ({type(error).__name__})."
            raise Temporary(words) from None
        except ValueError:
            raise Rejected("The bot token has characters no token has.", reason="token_refused") from None

    def _result(self, method: str, response: httpx2.Response) -> Any:
        try:
            answer = response.json()
        except ValueError:
            answer = None
        if not isinstance(answer, dict):
            if response.status_code == 404:
                raise self._not_found(method)
            raise Temporary(f"Telegram: {method}: answered {response.status_code} without JSON.")
        if answer.get("ok") is True:
            return answer.get("result")
        raise self._error(method, response.status_code, answer)

    def _error(self, method: str, status: int, answer: dict[str, Any]) -> Exception:
        description = str(answer.get("description", ""))[:500].replace(self._token, "…")
        parameters = answer.get("parameters") if isinstance(answer.get("parameters"), dict) else {}
        assert isinstance(parameters, dict)
        if status == 429:
            after = parameters.get("retry_after")
            wait = float(after) if isinstance(after, int | float) else 5.0
            return Temporary(f"Telegram: {method}: {description}", reason="rate_limited", retry_after=wait)
        if status == 409:
            text = description if "webhook" in description.lower() else CONFLICT
            return Temporary(text, reason="conflict", retry_after=15)
        if status >= 500:
            return Temporary(f"Telegram: {method}: {status} {description}")
        if status == 401:
            return Rejected(REFUSED.format(connection=self._account.id), reason="token_refused")
        if status == 404:
            return self._not_found(method)
        moved = parameters.get("migrate_to_chat_id")
        reason = next((name for words, name in _REASONS if words in description.lower()), "rejected")
        return Rejected(
            description, reason=reason, method=method, moved_to=moved if isinstance(moved, int) else None
        )

    def _not_found(self, method: str) -> Rejected:
        """The error for a 404. Every bot has `getMe`, so a 404 there means that there is no bot. Another
        method may be unknown to this server."""
        url = self.settings.api_url
        if method == "getMe":
            told = NOT_THERE.format(url=url, connection=self._account.id)
            return Rejected(told, reason="token_refused")
        return Rejected(UNKNOWN_METHOD.format(url=url), reason="unknown_method", method=method)


def _cleaned(value: Any) -> Any:
    """Without control characters, which no server takes, wherever there is text."""
    if isinstance(value, str):
        return clean(value)
    if isinstance(value, dict):
        return {name: _cleaned(item) for name, item in value.items()}
    return [_cleaned(item) for item in value] if isinstance(value, list | tuple) else value


def _form(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value)
