"""Authentication and permissions (App JWTs, installation tokens, users' tokens), rate limits and faults."""

from __future__ import annotations

import base64
import binascii
import math
import time
from collections import deque
from dataclasses import dataclass
from typing import Any, Literal

import jwt
from starlette.requests import Request

from gofer_standins.github.world import App, GitHubWorld, Repository, Token

ORDER = {"none": 0, "read": 1, "triage": 1, "write": 2, "maintain": 2, "admin": 3}


class ApiRefusal(Exception):
    """An error response."""

    def __init__(self, status: int, message: str, headers: dict[str, str] | None = None) -> None:
        super().__init__(message)
        self.status = status
        self.headers = headers or {}


@dataclass(frozen=True, slots=True)
class Fault:
    """Something that goes wrong with the next request whose method and path contain the given words."""

    kind: Literal["limited", "broken", "dropped", "stalled", "missing", "forbidden"]
    where: str = ""
    """Such as `POST /issues/1/comments`; empty for any request."""
    seconds: float = 1


class RateLimits:
    """The rate limits of one account: requests an hour, and new content a minute."""

    def __init__(self, requests: int = 5000, creations: int = 80) -> None:
        self.requests = requests
        """Requests left in this hour."""
        self.creations = creations
        """New comments, pull requests and the like within a minute."""
        self.minute = 60.0
        self.reset_at = time.time() + 3600
        self._made: deque[float] = deque()

    def headers(self) -> dict[str, str]:
        return {
            "x-ratelimit-remaining": str(self.requests),
            "x-ratelimit-reset": str(math.ceil(self.reset_at)),
            "x-ratelimit-resource": "core",
        }

    def count(self, method: str, path: str) -> None:
        """Count a request; raises the ApiRefusal of GitHub when it is one too many."""
        if self.requests <= 0:
            raise ApiRefusal(403, "API rate limit exceeded for installation.", self.headers())
        self.requests -= 1
        if method != "POST" or "/repos/" not in path:
            return
        while self._made and self._made[0] < time.time() - self.minute:
            self._made.popleft()
        if len(self._made) >= self.creations:
            wait = max(1, math.ceil(self._made[0] + self.minute - time.time()))
            words = (
                "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
            )
            raise ApiRefusal(403, words, {"retry-after": str(wait)})
        self._made.append(time.time())


def credentials(request: Request) -> str:
    """The token or JWT of a request, by any scheme."""
    kind, _, value = request.headers.get("authorization", "").partition(" ")
    if kind.lower() == "basic":
        try:
            return base64.b64decode(value, validate=True).decode().partition(":")[2]
        except (binascii.Error, UnicodeDecodeError):
            raise ApiRefusal(401, "Bad credentials") from None
    return value if kind.lower() in ("bearer", "token") else ""


def app_of(world: GitHubWorld, request: Request) -> App:
    """The App of a request's JWT, checked as strictly as GitHub does."""
    value = credentials(request)
    try:
        claimed = jwt.decode(value, options={"verify_signature": False})
        app = world.apps[int(claimed["iss"])]
        found: dict[str, Any] = jwt.decode(value, app.public_key, algorithms=["RS256"], leeway=60)
    except (jwt.PyJWTError, KeyError, ValueError, TypeError):
        raise ApiRefusal(401, "A JSON web token could not be decoded") from None
    if found["exp"] - time.time() > 660:
        raise ApiRefusal(401, "'Expiration time' claim ('exp') is too far in the future")
    return app


def token_of(world: GitHubWorld, request: Request) -> Token:
    """The live token of a request."""
    token = world.tokens.get(credentials(request))
    if token is None or token.until < time.time():
        raise ApiRefusal(401, "Bad credentials")
    if token.installation is not None and token.installation.suspended:
        raise ApiRefusal(403, "This installation has been suspended")
    token.calls.append(f"{request.method} {request.url.path.removeprefix('/api/v3')}")
    return token


def repository_for(
    world: GitHubWorld, token: Token, full_name: str, permission: str, level: str
) -> Repository:
    """A repository, when a token has this permission; 404 when the token cannot see it."""
    repository = world.repositories.get(full_name)
    if repository is None:
        raise ApiRefusal(404, "Not Found")
    if token.installation is not None:
        if full_name not in token.repositories or full_name not in token.installation.repositories:
            raise ApiRefusal(404, "Not Found")
        held = "read" if permission == "metadata" else token.permissions.get(permission, "none")
    else:
        held = repository.permissions.get(token.user.login, "none")
        if held == "none":
            raise ApiRefusal(404, "Not Found")
    if ORDER[held] < ORDER[level]:
        raise ApiRefusal(403, "Resource not accessible by integration")
    if level == "write" and repository.archived:
        raise ApiRefusal(403, "Repository was archived so is read-only.")
    return repository
