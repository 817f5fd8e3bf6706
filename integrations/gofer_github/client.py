"""Requests to GitHub's API: PyGithub's requester in threads of our own, and its errors as ours.

PyGithub signs, authenticates and reads answers. Its objects are not used: they load themselves lazily, so that
one line may be several requests, each of which can fail (docs/decisions/0008-github-by-requests.md).
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urljoin, urlsplit

from gofer.errors import Permanent, Temporary

if TYPE_CHECKING:
    from github.Auth import Auth

TIMEOUT = 15
THREADS = 8
PER_PAGE = 100
HOPS = 4
"""Redirects that one request follows."""
API_VERSION = "2022-11-28"
"""The REST API version that every request names."""
JSON = "application/vnd.github+json"
SHA = "application/vnd.github.sha"
MAX_SHORT_WAIT = 20.0
"""A rate limit of up to so many seconds is waited out in the request; for a longer one the run is postponed."""
MAX_WAIT = 3600.0
"""Seconds of the longest wait, whatever GitHub says."""
AGAIN_AFTER = 600.0
"""Seconds between two tries of a reply that may succeed once somebody changes something at GitHub."""
GIVE_UP_AFTER = 3 * 86_400.0
"""Seconds for which such a reply is tried."""
SECONDARY = 60.0
"""Seconds to wait for a secondary limit without a time."""
MAX_BRANCHES = 200
MAX_KEPT_FILE = 64_000
"""The size of the cache: repositories, and characters per file."""


@dataclass(frozen=True, slots=True)
class _Asked:
    """One request."""

    method: str
    path: str
    parameters: dict[str, Any] | None = None
    headers: dict[str, str] | None = None
    body: dict[str, Any] | None = None
    blob: bool = False
    """Whether only the response headers are needed, which say where something is stored."""


class RateLimit:
    """Until when GitHub wants no requests. A limit that one request meets holds for the whole installation."""

    def __init__(self) -> None:
        self._until: dict[str, float] = {}

    def left(self, path: str) -> float:
        """Seconds to wait before a request."""
        until = max(self._until.get(ALL, 0.0), self._until.get(_resource(path), 0.0))
        return max(0.0, until - time.monotonic())

    def hold(self, seconds: float, resource: str = "") -> None:
        """Send nothing to a resource for so long; to none without a name."""
        name = resource or ALL
        self._until[name] = max(self._until.get(name, 0.0), time.monotonic() + seconds)


ALL = "all"


@dataclass(slots=True)
class DefaultBranch:
    """A repository's default branch. Its files, and which are missing, are cached until the branch moves."""

    client: Client
    repository: str
    head: str
    files: dict[str, str | Permanent] = field(default_factory=dict)

    async def file(self, path: str) -> str:
        """A file's text; raises Permanent as `Client.file` does."""
        if (kept := self.files.get(path)) is None:
            try:
                kept = await self.client.file(self.repository, path)
            except Permanent as error:
                if not is_missing(error):
                    raise
                kept = Permanent(str(error), reason=error.reason)
            if isinstance(kept, Permanent) or len(kept) <= MAX_KEPT_FILE:
                self.files[path] = kept
        if isinstance(kept, Permanent):
            raise Permanent(str(kept), reason=kept.reason)
        return kept


Branches = dict[str, DefaultBranch]
"""By repository, least recently used first."""


def _resource(path: str) -> str:
    """The rate limit that a request counts against."""
    if path.startswith("/search/"):
        return "search"
    return "graphql" if path == "/graphql" else "core"


@lru_cache(maxsize=1)
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(THREADS, thread_name_prefix="github")


class Client:
    """One identity at one GitHub server."""

    def __init__(
        self,
        api_url: str,
        auth: Auth,
        renew: Callable[[], Awaitable[Auth]] | None = None,
        *,
        limit: RateLimit | None = None,
        patience: float = 0,
        branches: Branches | None = None,
    ) -> None:
        """`renew` gives another credential when GitHub no longer takes this one; `limit` is shared with every other
        request of the installation, and waited out when less than `patience` is left of it. `branches` are shared
        with every other client of the connection."""
        self._api_url = api_url
        self._auth = auth
        self._renew = renew
        self._limit = limit or RateLimit()
        self._patience = patience
        self._branches = {} if branches is None else branches

    async def get(self, path: str, *, accept: str = "", **parameters: Any) -> Any:
        return await self.request("GET", path, parameters=parameters, accept=accept)

    async def text(self, path: str, accept: str) -> str:
        """A response that is text, such as a diff; PyGithub wraps what is not JSON."""
        answer = await self.get(path, accept=accept)
        if isinstance(answer, dict) and isinstance(answer.get("data"), str):
            return str(answer["data"])
        if answer is None:
            return ""
        raise Permanent("GitHub answered with something else than text.", reason="github.not_text")

    async def file(self, repository: str, path: str, ref: str = "") -> str:
        """A file's text, at the default branch unless a ref is given; raises Permanent when it is binary or huge."""
        # Quoted, or `file?ref=theirs` would be read from another place than it seems.
        asked = f"/repos/{repository}/contents/{quote(path)}"
        answer = await self.get(asked, **({"ref": ref} if ref else {}))
        if not isinstance(answer, dict) or answer.get("encoding") != "base64":
            raise Permanent("That is a directory, or too big to be read this way.", reason="github.not_text")
        return base64.b64decode(answer["content"]).decode("utf-8", "replace")

    async def default_branch(self, repository: str) -> DefaultBranch:
        """The default branch. GitHub does not count the request when the branch has not moved."""
        kept = self._branches.pop(repository, None)
        head = await self._head(repository, kept.head if kept else "")
        files = kept.files if kept is not None and kept.head == head else {}
        branch = DefaultBranch(self, repository, head, files)
        if head:
            self._branches[repository] = branch
            while len(self._branches) > MAX_BRANCHES:
                del self._branches[next(iter(self._branches))]
        return branch

    async def _head(self, repository: str, known: str) -> str:
        """The commit of the default branch; empty when there is none, as in an empty repository."""
        headers = {"Accept": SHA, **({"If-None-Match": f'"{known}"'} if known else {})}
        try:
            answer = await self._renewing(_Asked("GET", f"/repos/{repository}/commits/HEAD", headers=headers))
        except Permanent:
            return ""
        # Nothing is said of one that has not moved (304); PyGithub wraps what is no JSON.
        return known if answer is None else str(answer.get("data") or "") if isinstance(answer, dict) else ""

    async def location(self, path: str) -> str:
        """The URL of something that GitHub stores elsewhere, such as a log. It works for a minute."""
        headers = await self._renewing(_Asked("GET", path, headers={"Accept": JSON}, blob=True))
        found = {name.lower(): value for name, value in headers.items()}.get("location", "")
        if not found:
            raise Permanent(f"GitHub has nothing at {path}.", reason="github.not_found")
        return str(found)

    async def graphql(self, query: str, **variables: Any) -> dict[str, Any]:
        """A GraphQL request, for the few things that REST cannot do."""
        # It lies beside the REST API: /graphql, or /api/graphql beside /api/v3.
        beside = Client(
            self._api_url.removesuffix("/v3"),
            self._auth,
            self._renew,
            limit=self._limit,
            patience=self._patience,
        )
        answer = await beside.post("/graphql", {"query": query, "variables": variables})
        if errors := answer.get("errors"):
            raise Permanent(f"GitHub answered: {errors[0].get('message', '')}", reason="github.rejected")
        found: dict[str, Any] = answer["data"]
        return found

    async def post(self, path: str, body: dict[str, Any] | None = None) -> Any:
        return await self.request("POST", path, body=body or {})

    async def patch(self, path: str, body: dict[str, Any]) -> Any:
        return await self.request("PATCH", path, body=body)

    async def pages(self, path: str, *, most: int = 10, key: str = "", **parameters: Any) -> list[Any]:
        """All pages of a list, up to `most`."""
        found: list[Any] = []
        for page in range(1, most + 1):
            answer = await self.get(path, per_page=PER_PAGE, page=page, **parameters)
            some = answer[key] if key else answer
            found += some
            if len(some) < PER_PAGE:
                break
        return found

    async def comments(
        self, repository: str, number: int, *, most: int = 20
    ) -> AsyncIterator[dict[str, Any]]:
        """The comments of an issue or pull request, the newest first. GitHub lists them from the oldest on, so the last
        page is asked for first."""
        count = int((await self.get(f"/repos/{repository}/issues/{number}")).get("comments") or 0)
        last = count // PER_PAGE + 1
        for page in range(last, max(0, last - most), -1):
            path = f"/repos/{repository}/issues/{number}/comments"
            for comment in reversed(await self.get(path, per_page=PER_PAGE, page=page)):
                yield comment

    async def request(
        self,
        method: str,
        path: str,
        *,
        parameters: dict[str, Any] | None = None,
        body: dict[str, Any] | None = None,
        accept: str = "",
    ) -> Any:
        """Send one request; raises Temporary or Permanent."""
        return await self._renewing(_Asked(method, path, parameters, {"Accept": accept or JSON}, body))

    async def _renewing(self, asked: _Asked) -> Any:
        """Send a request, and again with a new credential when GitHub refuses this one."""
        try:
            return await self._within_limits(asked)
        except Permanent as error:
            if self._renew is None or error.reason != "github.credentials":
                raise
        self._auth, self._renew = await self._renew(), None
        return await self._within_limits(asked)

    async def _within_limits(self, asked: _Asked) -> Any:
        """Send a request when the rate limit allows it. Wait out a short limit; raise Temporary for a long one."""
        waited = 0.0
        while True:
            left = self._limit.left(asked.path)
            if left > self._patience - waited:
                detail = f"GitHub's rate limit: {asked.method} {asked.path} has to wait {left:.0f} s."
                raise Temporary(detail, reason="rate_limit", retry_after=left)
            await asyncio.sleep(left)
            waited += left
            try:
                return await self._in_thread(asked)
            except Temporary as error:
                if error.reason != "rate_limit" or (error.retry_after or 0) > self._patience - waited:
                    raise

    async def _in_thread(self, asked: _Asked) -> Any:
        call = asyncio.get_running_loop().run_in_executor(_pool(), self._ask, asked)
        try:
            async with asyncio.timeout(TIMEOUT + 5):
                return await call
        except TimeoutError:
            raise Temporary("GitHub did not answer in time.", reason="timeout") from None

    def _ask(self, asked: _Asked) -> Any:
        """Send a request, and follow redirects within the API: a renamed repository is redirected to its id."""
        from gofer_github.redirects import Moved

        for _ in range(HOPS):
            try:
                return self._ask_there(asked)
            except Moved as moved:
                asked = replace(asked, path=self._within(asked.path, moved.location), parameters=None)
        raise Permanent(f"GitHub sends us in circles: {asked.path}", reason="github.elsewhere")

    def _within(self, path: str, location: str) -> str:
        """The path of a redirect below our API's URL. Our credential goes nowhere else."""
        ours, goal = urlsplit(self._api_url), urlsplit(urljoin(self._api_url + path, location))
        same = (goal.scheme, goal.netloc.lower()) == (ours.scheme, ours.netloc.lower())
        if not location or not same or not goal.path.startswith(f"{ours.path}/"):
            detail = f"GitHub sends us elsewhere: to {goal.scheme}://{goal.netloc}, not {self._api_url}"
            raise Permanent(detail, reason="github.elsewhere")
        return f"{goal.path.removeprefix(ours.path)}{f'?{goal.query}' if goal.query else ''}"

    def _ask_there(self, asked: _Asked) -> Any:
        import requests
        from jwt import PyJWTError

        from github import GithubException
        from gofer_github.redirects import RedirectRequester

        requester = RedirectRequester(
            self._auth, self._api_url, TIMEOUT, "Gofer", PER_PAGE, True, None, None,
            seconds_between_requests=0, seconds_between_writes=0,
        )  # fmt: skip
        try:
            wanted = {"X-GitHub-Api-Version": API_VERSION, **(asked.headers or {})}
            given = (asked.method, asked.path, asked.parameters or None, wanted)
            if asked.blob:
                return requester.requestBlobAndCheck(*given)[0]
            headers, answer = requester.requestJsonAndCheck(*given, asked.body, follow_302_redirect=True)
            self._note(headers)
            return answer
        except GithubException as error:
            ours = _ours(error.status, error.data, error.headers or {}, f"{asked.method} {asked.path}")
            self._note(error.headers or {}, ours)
            raise ours from None
        except requests.RequestException as error:
            raise Temporary(
                f"GitHub cannot be reached: {type(error).__name__}.", reason="unreachable"
            ) from None
        except PyJWTError as error:
            raise Permanent(f"The App's key cannot sign: {error}", reason="github.credentials") from None
        except ValueError:
            raise Temporary("GitHub answered with something unreadable.", reason="unreadable") from None
        except (RuntimeError, AssertionError) as error:
            # What PyGithub says to an address that is not of its host.
            raise Permanent(f"GitHub sends us elsewhere: {error}", reason="github.elsewhere") from None
        finally:
            requester.close()

    def _note(self, headers: dict[str, Any], error: Exception | None = None) -> None:
        """Apply a limit to every request of the installation."""
        given = _given(headers)
        if isinstance(error, Temporary) and error.reason == "rate_limit":
            spent = given.get("x-ratelimit-remaining") == "0" and "retry-after" not in given
            self._limit.hold(
                error.retry_after or SECONDARY, given.get("x-ratelimit-resource", "core") if spent else ""
            )
        elif given.get("x-ratelimit-remaining") == "0":
            # The last one that was allowed: asking again before the reset is what GitHub bans Apps for.
            self._limit.hold(_wait(given), given.get("x-ratelimit-resource", "core"))


def _given(headers: dict[str, Any]) -> dict[str, str]:
    return {name.lower(): str(value) for name, value in headers.items()}


def _ours(status: int, data: Any, headers: dict[str, str], asked: str) -> Temporary | Permanent:
    """The error for a response."""
    message = _said(data)
    given = _given(headers)
    detail = f"GitHub answered {status} to {asked}: {message or 'no reason given'}"
    if status == 403 and "archived" in message.lower():
        detail = f"The repository is archived: nothing can be written there. {detail}"
    if status == 403 and "suspended" in message.lower():
        # An owner can resume it at any time; until then nothing is heard either.
        return Temporary(
            detail, reason="github.suspended", retry_after=AGAIN_AFTER, give_up_after=GIVE_UP_AFTER
        )
    if status == 429 or (status == 403 and _limited(message, given)):
        return Temporary(detail, reason="rate_limit", retry_after=_wait(given))
    if status >= 500 or status == 408:
        return Temporary(detail, reason="unavailable")
    reasons = {
        401: "credentials",
        403: "forbidden",
        404: "not_found",
        406: "too_big",
        410: "gone",
        422: "invalid",
        451: "blocked",
    }
    return Permanent(detail, reason=f"github.{reasons.get(status, 'rejected')}")


def _said(data: Any) -> str:
    """GitHub's reason. After `Validation Failed` it is in a list."""
    if not isinstance(data, dict):
        return ""
    errors = data.get("errors")
    found = (
        [one.get("message") if isinstance(one, dict) else one for one in errors]
        if isinstance(errors, list)
        else []
    )
    more = [str(one) for one in found if one][:5]
    return ": ".join([*filter(None, [str(data.get("message") or "")]), *([", ".join(more)] if more else [])])


def _limited(message: str, headers: dict[str, str]) -> bool:
    words = ("rate limit", "abuse detection", "secondary")
    return (
        "retry-after" in headers
        or headers.get("x-ratelimit-remaining") == "0"
        or any(word in message.lower() for word in words)
    )


def _wait(headers: dict[str, str]) -> float:
    """Seconds until the next request is allowed."""
    try:
        if "retry-after" in headers:
            return min(MAX_WAIT, max(1.0, float(headers["retry-after"])))
        if headers.get("x-ratelimit-remaining") == "0":
            return min(MAX_WAIT, max(1.0, float(headers["x-ratelimit-reset"]) - time.time()))
    except (KeyError, ValueError):
        pass
    return SECONDARY


def login_of(one: dict[str, Any]) -> str:
    """Who wrote something; empty when their account was deleted."""
    return str((one.get("user") or {}).get("login") or "")


def is_missing(error: Permanent) -> bool:
    """Whether something does not exist, or is hidden from us: GitHub does not say which."""
    return error.reason in ("github.not_found", "github.gone")
