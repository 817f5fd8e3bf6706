"""A strict stand-in for GitHub on loopback: Apps, issues, pulls, checks, signed webhooks, and real git.

It covers what `gofer_github` uses, refuses what GitHub refuses there, and answers 404 to everything else. Its
world is the ground truth of a test; faults are on demand.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import hmac
import json
import secrets
import tempfile
import uuid
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any

import httpx2
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Mount, Route

from gofer_standins.github import api, git, shapes
from gofer_standins.github.api import OtherEndpoints
from gofer_standins.github.apps import Apps, new_key
from gofer_standins.github.auth import ApiRefusal, Fault, RateLimits, repository_for, token_of
from gofer_standins.github.world import (
    App,
    CheckRun,
    Comment,
    Delivery,
    GitHubWorld,
    Installation,
    Issue,
    Repository,
    Review,
    Token,
    stamp,
)
from gofer_standins.loopback import hang_up, serve

__all__ = ["Fault", "GitHubService"]

VERSION = "2022-11-28"
PERMISSIONS = {
    "metadata": "read", "issues": "write", "pull_requests": "write", "contents": "write", "checks": "write",
    "actions": "read", "statuses": "read",
}  # fmt: skip
EVENTS = [
    "issues", "issue_comment", "pull_request", "pull_request_review", "pull_request_review_comment", "check_suite",
    "status", "repository",
]  # fmt: skip


class GitHubService:
    """GitHub, as far as we use it. People act through its methods; programs through its API.

    By default it is laid out as GitHub Enterprise Server: one host, with the API below /api. As the public
    GitHub, its API has a host of its own. Neither answers where the other would.
    """

    def __init__(self, *, public: bool = False) -> None:
        self.world = GitHubWorld()
        self._public = public
        self.faults: deque[Fault] = deque()
        self.calls: list[tuple[str, str, int]] = []
        """Method, path and status of every request to the API."""
        self.unversioned: list[str] = []
        """Requests that did not say which version of the API they mean, or which media type."""
        self.url = ""
        """Where people and git go."""
        self.api_url = ""
        self.hook_timeout = 10.0
        self._folder: Path | None = None
        self.limits = RateLimits()
        self._telling: set[asyncio.Task[Any]] = set()
        self._apps = Apps(self.world, self._redeliver, self.app_page)
        self._across = OtherEndpoints(self.world)

    def app_page(self, slug: str) -> str:
        """Where people see an App."""
        return f"{self.url}/{'apps' if self._public else 'github-apps'}/{slug}"

    @contextlib.asynccontextmanager
    async def open(self) -> AsyncIterator[GitHubService]:
        """Listen on loopback, with a folder for repositories that goes with it."""
        with tempfile.TemporaryDirectory(prefix="gofer-github-") as folder:
            self._folder = Path(folder)
            async with contextlib.AsyncExitStack() as stack:
                api = (
                    []
                    if self._public
                    else [self._graphql("/api/graphql"), Mount("/api/v3", routes=self._api())]
                )
                self.url = await stack.enter_async_context(serve(Starlette(routes=[*api, *self._site()])))
                self.api_url = f"{self.url}/api/v3"
                if self._public:
                    beside = Starlette(routes=[self._graphql("/graphql"), *self._api()])
                    self.api_url = await stack.enter_async_context(serve(beside))
                yield self

    def _graphql(self, path: str) -> Route:
        return Route(path, self._plain(self._across.graphql), methods=["POST"])

    def _api(self) -> list[Route]:
        routes = [
            Route(either, self._guarded(handler, permission, level), methods=[method])
            for method, path, permission, level, handler in api.ROUTES
            for either in (path, _by_number(path))
        ]
        apps = self._apps
        plain: list[tuple[str, str, Callable[[Request], Awaitable[Response]]]] = [
            ("POST", "/app-manifests/{code}/conversions", apps.convert),
            ("GET", "/app", apps.me),
            ("GET", "/search/issues", self._across.search),
            ("GET", "/user", apps.user),
            ("GET", "/user/{id:int}", apps.user_by_id),
            ("GET", "/users/{login}", apps.user_by_login),
            ("GET", "/repos/{owner}/{name}/installation", apps.installation_of),
            ("GET", _by_number("/repos/{owner}/{name}/installation"), apps.installation_of),
            ("GET", "/app/installations", apps.installations),
            ("GET", "/installation/repositories", apps.repositories),
            ("POST", "/app/installations/{id:int}/access_tokens", apps.mint),
            ("DELETE", "/installation/token", apps.revoke),
            ("GET", "/app/hook/deliveries", apps.deliveries),
            ("GET", "/app/hook/deliveries/{id:int}", apps.delivery),
            ("POST", "/app/hook/deliveries/{id:int}/attempts", apps.redeliver),
        ]
        return [Route(path, self._plain(handler), methods=[m]) for m, path, handler in plain] + routes

    def _site(self) -> list[Route]:
        """What is not the API: pages, git, and where logs are kept."""

        async def smart_http(request: Request) -> Response:
            return await git.serve(self.world, request)

        async def lfs_storage(request: Request) -> Response:
            return await git.lfs_storage(self.world, request)

        kept = Route("/lfs-storage/{owner}/{name}/{oid}", lfs_storage, methods=["GET", "PUT"])
        backend = Route("/{owner}/{name}/{rest:path}", smart_http, methods=["GET", "POST"])
        create = self._plain(self._apps.create, limited=False)
        pages = [
            Route(path, create, methods=["POST"])
            for path in ("/settings/apps/new", "/organizations/{org}/settings/apps/new")
        ]
        storage = Route("/storage/{owner}/{name}/{id:int}", self._plain(self._across.stored, limited=False))
        assets = Route("/user-attachments/assets/{id}", self._plain(self._across.asset, limited=False))
        return [storage, assets, kept, *pages, backend]

    def _guarded(
        self, handler: api.Handler, permission: str, level: str
    ) -> Callable[[Request], Awaitable[Response]]:
        async def answer(request: Request) -> Response:
            token = token_of(self.world, request)
            full_name = f"{request.path_params['owner']}/{request.path_params['name']}"
            of = repository_for(self.world, token, full_name, permission, level)
            return await handler(
                api.ApiRequest(self.world, self.url, request, token, of, await _body(request), self._tell)
            )

        return self._plain(answer)

    def _plain(
        self, handler: Callable[[Request], Awaitable[Response]], *, limited: bool = True
    ) -> Callable[[Request], Awaitable[Response]]:
        """With the faults asked for, and refusals in GitHub's words."""

        async def answer(request: Request) -> Response:
            path = request.url.path.removeprefix("/api/v3")
            fault = self._fault(f"{request.method} {path}")
            try:
                if fault is not None:
                    await _go_wrong(fault)
                if limited:
                    self._check_version(request, path)
                    self.limits.count(request.method, request.url.path)
                response = self._sent_on(request) or await handler(request)
                if limited and response.status_code == 304:
                    self.limits.requests += 1  # what has not changed costs nothing
                response.headers.update(self.limits.headers())
            except ApiRefusal as refusal:
                response = JSONResponse({"message": str(refusal)}, refusal.status, refusal.headers)
            self.calls.append((request.method, path, response.status_code))
            if fault is not None and fault.kind == "dropped":
                hang_up(request)
            return response

        return answer

    def _check_version(self, request: Request, path: str) -> None:
        """GitHub refuses a version it never had, and takes the oldest for none."""
        version = request.headers.get("x-github-api-version")
        if version not in (None, VERSION):
            raise ApiRefusal(400, f"Version {version} is not a supported version of this API")
        if version is None or not request.headers.get("accept", "").startswith("application/vnd.github"):
            self.unversioned.append(f"{request.method} {path}")

    def _sent_on(self, request: Request) -> Response | None:
        """Who asks for a repository by a name that it had is sent to its number, at which it answers for ever."""
        asked = request.path_params
        if "repository" in asked:
            named = self.world.by_number(asked["repository"])
            asked["owner"], asked["name"] = named.full_name.split("/") if named else ("", "")
            return None
        old = f"{asked.get('owner')}/{asked.get('name')}"
        found = self.world.now_called(old)
        if found is None:
            return None
        rest = request.url.path.partition(f"/repos/{old}")[2]
        query = f"?{request.url.query}" if request.url.query else ""
        goal = f"{self.api_url}/repositories/{found.id}{rest}{query}"
        told = {"message": "Moved Permanently", "url": goal}
        return JSONResponse(told, 301 if request.method == "GET" else 307, {"location": goal})

    def _fault(self, asked: str) -> Fault | None:
        for fault in self.faults:
            if all(word in asked for word in fault.where.split()):
                self.faults.remove(fault)
                return fault
        return None

    # What an operator does.

    def create_app(
        self, slug: str = "gofer", hook_url: str = "", key: tuple[str, str] | None = None
    ) -> tuple[App, str]:
        """An App and its private key, which takes its time to make unless a pair is given."""
        private, public = key or new_key()
        made = App(
            self.world.next_id(),
            slug,
            public,
            secrets.token_urlsafe(32),
            hook_url,
            dict(PERMISSIONS),
            list(EVENTS),
        )
        self.world.apps[made.id] = made
        self._apps.keys[made.id] = private
        return made, private

    def manifest_code(self, slug: str = "gofer") -> str:
        """What GitHub comes back with after somebody pressed the button."""
        code = secrets.token_hex(20)
        self.world.codes[code] = self.create_app(slug)[0]
        return code

    def install(self, app: App, *repositories: str) -> Installation:
        made = Installation(self.world.next_id(), app, set(repositories), dict(app.permissions))
        self.world.installations[made.id] = made
        return made

    def create_repository(self, full_name: str, files: dict[str, str], **people: str) -> Repository:
        """A repository with one commit, and what people may do with it."""
        assert self._folder is not None
        number = self.world.next_id()
        path = self._folder / f"{full_name.replace('/', '__')}-{number}.git"
        git.make(path, files, "main")
        for login in people:
            self.world.user(login)
        made = Repository(number, full_name, path, permissions=dict(people))
        made.owner = self.world.user(full_name.partition("/")[0]).id
        self.world.repositories[full_name] = made
        return made

    async def rename_repository(self, login: str, of: Repository, full_name: str) -> None:
        """Everybody who knows it calls it so from now on; its old name is free. Who gave it to another owner takes
        it from every App: the other one installs them anew."""
        owner, _, name = of.full_name.partition("/")
        stays = full_name.startswith(f"{owner}/")
        self._taken_from_all(of, {full_name} if stays else set())
        del self.world.repositories[of.full_name]
        self.world.moved[of.full_name] = of.id
        for one in of.issues.values():
            if one.head_repository == of.full_name:
                one.head_repository = full_name
        of.full_name, of.owner = full_name, self.world.user(full_name.partition("/")[0]).id
        self.world.repositories[full_name] = of
        if stays:
            changes = {"repository": {"name": {"from": name}}}
            await self.deliver("repository", {"action": "renamed", "changes": changes}, of, login)

    def delete_repository(self, of: Repository) -> None:
        """Its name is free; nothing that reached it reaches whoever gets that."""
        self._taken_from_all(of, set())
        del self.world.repositories[of.full_name]

    def _taken_from_all(self, of: Repository, instead: set[str]) -> None:
        held: list[Installation | Token] = [*self.world.installations.values(), *self.world.tokens.values()]
        for place in held:
            if of.full_name in place.repositories:
                place.repositories = place.repositories - {of.full_name} | instead

    # What people do.

    def upload(self, data: bytes) -> str:
        """Drag a picture into a text; returns where it is, for who is signed in."""
        name = str(uuid.uuid4())
        self.world.assets[name] = data
        return f"{self.url}/user-attachments/assets/{name}"

    async def open_issue(self, login: str, of: Repository, title: str, body: str = "") -> Issue:
        made = Issue(of.next_number(), title, body, self.world.user(login))
        of.issues[made.number] = made
        await self.deliver(
            "issues", {"action": "opened", "issue": shapes.issue(made, of, self.url)}, of, login
        )
        return made

    def _tell(self, event: str, payload: dict[str, Any], of: Repository, login: str) -> None:
        """A program did something: its App hears of it like of anybody's doing, a moment later."""
        task = asyncio.create_task(self.deliver(event, payload, of, login))
        self._telling.add(task)
        task.add_done_callback(self._telling.discard)

    async def open_pull(
        self, login: str, of: Repository, head: str, title: str = "A change", fork: str = ""
    ) -> Issue:
        made = Issue(of.next_number(), title, "", self.world.user(login), head=head, base=of.default_branch)
        made.head_repository = fork or of.full_name
        of.issues[made.number] = made
        shown = shapes.pull(made, of, self.url, git.sha_of(of, head))
        await self.deliver("pull_request", {"action": "opened", "pull_request": shown}, of, login)
        return made

    async def merge(
        self, login: str, of: Repository, number: int, *, squash: bool, keep: bool = False
    ) -> None:
        """Press the button; the branch goes, unless it is kept."""
        pull = of.issues[number]
        pull.merged_sha = git.sha_of(of, pull.head)
        git.merge(of.path, pull.base, pull.head, squash=squash)
        if not keep:
            git.run(of.path, "update-ref", "-d", f"refs/heads/{pull.head}")
        pull.state, pull.merged_at = "closed", stamp()
        shown = shapes.pull(pull, of, self.url, pull.merged_sha)
        await self.deliver("pull_request", {"action": "closed", "pull_request": shown}, of, login)

    async def comment(self, login: str, of: Repository, number: int, body: str) -> Comment:
        made = Comment(self.world.next_id(), number, self.world.user(login), body)
        of.comments[made.id] = made
        payload = {
            "action": "created",
            "issue": shapes.issue(of.issues[number], of, self.url),
            "comment": shapes.comment(made, of, self.url),
        }
        await self.deliver("issue_comment", payload, of, login)
        return made

    async def review_comment(
        self,
        login: str,
        of: Repository,
        number: int,
        path: str,
        body: str,
        line: int = 1,
        side: str = "RIGHT",
    ) -> Comment:
        """A single remark on a line: a review of its own, as on GitHub."""
        (made,) = await self.review(login, of, number, "", comments=[(path, line, body)], side=side)
        return made

    async def review(
        self,
        login: str,
        of: Repository,
        number: int,
        body: str,
        state: str = "commented",
        comments: Sequence[tuple[str, int, str]] = (),
        side: str = "RIGHT",
    ) -> list[Comment]:
        """A review with comments on lines (path, line, words); GitHub tells of each, in no order."""
        pull, who = of.issues[number], self.world.user(login)
        whole = Review(self.world.next_id(), number, who, body, state.upper(), git.sha_of(of, pull.head))
        of.reviews[whole.id] = whole
        change, made = f"refs/heads/{pull.base}...refs/heads/{pull.head}", []
        for path, line, words in comments:
            one = Comment(self.world.next_id(), number, who, words, path=path, line=line, side=side)
            one.thread, one.review = one.id, whole.id
            one.hunk = git.hunk_at(of.path, change, path, line, side) or "@@"
            of.review_comments[one.id] = one
            made.append(one)
        shown = shapes.pull(pull, of, self.url, git.sha_of(of, pull.head))
        review = {**shapes.review(whole), "body": body or None, "state": state}
        told = {"action": "submitted", "pull_request": shown, "review": review}
        await self.deliver("pull_request_review", told, of, login)
        for one in made:
            said = {"action": "created", "pull_request": shown, "comment": shapes.comment(one, of, self.url)}
            await self.deliver("pull_request_review_comment", said, of, login)
        return made

    async def push(self, login: str, of: Repository, number: int, files: dict[str, str]) -> None:
        """New commits on a pull request."""
        pull = of.issues[number]
        sha = git.commit(of.path, files, pull.head, "More")
        shown = shapes.pull(pull, of, self.url, sha)
        await self.deliver("pull_request", {"action": "synchronize", "pull_request": shown}, of, login)

    async def label(self, login: str, of: Repository, number: int, name: str) -> None:
        one = of.issues[number]
        one.labels.append(name)
        if one.head:
            shown = {"pull_request": shapes.pull(one, of, self.url, git.sha_of(of, one.head))}
        else:
            shown = {"issue": shapes.issue(one, of, self.url)}
        event = "pull_request" if one.head else "issues"
        await self.deliver(event, {"action": "labeled", **shown, "label": {"name": name}}, of, login)

    async def fail_checks(self, of: Repository, number: int, log: str = "") -> None:
        """The checks of a pull request end badly."""
        pull = of.issues[number]
        if log:
            made = CheckRun(
                self.world.next_id(),
                "test",
                git.sha_of(of, pull.head),
                "completed",
                "github-actions[bot]",
                "failure",
            )
            made.log = log
            of.check_runs[made.id] = made
        suite = {
            "id": self.world.next_id(), "head_branch": pull.head, "head_sha": git.sha_of(of, pull.head),
            "status": "completed", "conclusion": "failure", "pull_requests": [{"number": number}],
            "app": {"id": 15368, "slug": "github-actions", "name": "GitHub Actions"},
        }  # fmt: skip
        await self.deliver("check_suite", {"action": "completed", "check_suite": suite}, of, pull.user.login)

    async def set_status(self, of: Repository, number: int, context: str, state: str) -> None:
        """A service sets a commit status on a pull request's head."""
        pull = of.issues[number]
        sha = git.sha_of(of, pull.head)
        one = {
            "id": self.world.next_id(), "context": context, "state": state, "description": "It said so.",
            "target_url": "https://ci.example/1", "sha": sha,
        }  # fmt: skip
        of.statuses.append(one)
        await self.deliver("status", {**one, "branches": [{"name": pull.head}]}, of, pull.user.login)

    async def rerun(self, login: str, of: Repository, check: CheckRun) -> None:
        """Press re-run on a check: its App hears of it, subscribed or not."""
        (app,) = [one for one in self.world.apps.values() if one.user.login == check.by]
        pulls = [one for one in of.issues.values() if git.sha_of(of, one.head or "-") == check.head_sha]
        shown = {
            **shapes.check_run(check), "app": {"id": app.id, "slug": app.slug},
            "pull_requests": [{"number": one.number} for one in pulls],
        }  # fmt: skip
        await self.deliver("check_run", {"action": "rerequested", "check_run": shown}, of, login, only=app)

    # Webhooks.

    async def deliver(
        self, event: str, payload: dict[str, Any], of: Repository, login: str, only: App | None = None
    ) -> None:
        """Tell every App that is installed there and listens, or the only one that it concerns."""
        sender = self.world.users.get(login) or self._bot(login)
        for place in list(self.world.installations.values()):
            heard = event in place.app.events if only is None else place.app is only
            listens = place.app.active and heard and not place.suspended
            if of.full_name in place.repositories and listens:
                whole = {
                    **payload,
                    "repository": shapes.repository(of, self.url),
                    "sender": shapes.user(sender),
                    "installation": {"id": place.id},
                }
                made = Delivery(self.world.next_id(), str(uuid.uuid4()), event, whole, app=place.app.id)
                self.world.deliveries.append(made)
                await self._send(place.app, made)

    def _bot(self, login: str) -> Any:
        bots = [app.user for app in self.world.apps.values() if app.user.login == login]
        return bots[0] if bots else self.world.user(login)

    async def _redeliver(self, app: App, delivery: Delivery) -> None:
        again = Delivery(
            self.world.next_id(), delivery.guid, delivery.event, delivery.payload, redelivery=True, app=app.id
        )
        self.world.deliveries.append(again)
        await self._send(app, again)

    async def _send(self, app: App, delivery: Delivery) -> None:
        """One try; GitHub makes no second by itself."""
        if not app.hook_url:
            return
        body = json.dumps(delivery.payload, separators=(",", ":")).encode()
        async with httpx2.AsyncClient(timeout=self.hook_timeout) as http:
            try:
                headers = signed(app.webhook_secret, delivery, body)
                response = await http.post(app.hook_url, content=body, headers=headers)
                delivery.status_code = response.status_code
            except httpx2.TransportError:
                delivery.status_code = 502


def signed(secret: str, delivery: Delivery, body: bytes) -> dict[str, str]:
    """The headers GitHub sends a webhook with."""
    return {
        "content-type": "application/json",
        "user-agent": "GitHub-Hookshot/0000000",
        "x-github-event": delivery.event,
        "x-github-delivery": delivery.guid,
        "x-hub-signature": "sha1=" + hmac.new(secret.encode(), body, hashlib.sha1).hexdigest(),
        "x-hub-signature-256": "sha256=" + hmac.new(secret.encode(), body, hashlib.sha256).hexdigest(),
    }


def _by_number(path: str) -> str:
    """The same of a repository by its number."""
    return path.replace("/repos/{owner}/{name}", "/repositories/{repository:int}", 1)


async def _body(request: Request) -> Any:
    if request.method not in ("POST", "PATCH", "PUT"):
        return None
    try:
        return await request.json()
    except ValueError:
        raise ApiRefusal(400, "Problems parsing JSON") from None


async def _go_wrong(fault: Fault) -> None:
    if fault.kind == "limited":
        words = "You have exceeded a secondary rate limit. Please wait a few minutes before you try again."
        raise ApiRefusal(403, words, {"retry-after": f"{fault.seconds:g}"})
    if fault.kind == "stalled":
        await asyncio.sleep(fault.seconds)
    statuses = {
        "broken": (502, "Server Error"),
        "missing": (404, "Not Found"),
        "forbidden": (403, "Forbidden"),
    }
    if fault.kind in statuses:
        raise ApiRefusal(*statuses[fault.kind])
