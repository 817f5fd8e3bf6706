"""The Apps' side of the API: manifests, installations, tokens, deliveries."""

from __future__ import annotations

import json
import secrets
from collections.abc import Awaitable, Callable
from typing import Any
from urllib.parse import parse_qsl, urlencode, urlsplit

from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import rsa
from starlette.requests import Request
from starlette.responses import JSONResponse, RedirectResponse, Response

from gofer_standins.github import shapes
from gofer_standins.github.auth import ORDER, ApiRefusal, app_of, token_of
from gofer_standins.github.world import App, Delivery, GitHubWorld, Installation, stamp

MANIFEST = {
    "name", "url", "hook_attributes", "redirect_url", "callback_urls", "setup_url", "description", "public",
    "default_events", "default_permissions", "request_oauth_on_install", "setup_on_update",
}  # fmt: skip
"""What a manifest may have."""


def new_key() -> tuple[str, str]:
    """A private and a public key, in PEM."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return private.decode(), public.decode()


class Apps:
    """Answers what Apps ask about themselves."""

    def __init__(
        self,
        world: GitHubWorld,
        redeliver: Callable[[App, Delivery], Awaitable[None]],
        page: Callable[[str], str],
    ) -> None:
        self._world = world
        self._page = page
        self._redeliver = redeliver
        self.keys: dict[int, str] = {}
        """Private keys that a manifest's conversion gives out."""

    async def create(self, request: Request) -> Response:
        """A signed-in person pressed the button on a page that posts a manifest; they are sent back with a code."""
        form = dict(parse_qsl((await request.body()).decode()))
        state = request.query_params.get("state", "")
        try:
            wanted = json.loads(str(form.get("manifest", "")))
            app, private = self._from_manifest(wanted)
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ApiRefusal(422, f"Invalid GitHub App configuration: {error}") from None
        self._world.apps[app.id], self.keys[app.id] = app, private
        code = secrets.token_hex(20)
        self._world.codes[code] = app
        back = f"{wanted['redirect_url']}?{urlencode({'code': code, 'state': state})}"
        return RedirectResponse(back, 302)

    def _from_manifest(self, wanted: dict[str, Any]) -> tuple[App, str]:
        """An App as a manifest describes it; KeyError or ValueError where GitHub refuses it."""
        hook = wanted["hook_attributes"]
        for address in (wanted["url"], wanted["redirect_url"], hook["url"]):
            if urlsplit(address).scheme not in ("http", "https"):
                raise ValueError(f"{address!r} is not an address")
        if not 0 < len(wanted["name"]) <= 34 or any(
            app.slug == wanted["name"] for app in self._world.apps.values()
        ):
            raise ValueError("the name is taken, or too long")
        unknown = {*wanted} - MANIFEST
        if unknown or {*wanted["default_permissions"].values()} - {"read", "write"}:
            raise ValueError(f"{unknown or 'a permission'} is not known")
        private, public = new_key()
        return App(
            self._world.next_id(), wanted["name"], public, secrets.token_urlsafe(32),
            hook["url"] if ".invalid/" not in hook["url"] else "", dict(wanted["default_permissions"]),
            list(wanted["default_events"]), hook.get("active", True),
        ), private  # fmt: skip

    async def convert(self, request: Request) -> Response:
        app = self._world.codes.pop(request.path_params["code"], None)
        if app is None:
            raise ApiRefusal(404, "Not Found")
        answer = {
            **self._shown(app),
            "pem": self.keys[app.id],
            "webhook_secret": app.webhook_secret,
        }
        return JSONResponse(answer, 201)

    async def me(self, request: Request) -> Response:
        return JSONResponse(self._shown(app_of(self._world, request)))

    def _shown(self, app: App) -> dict[str, Any]:
        return shapes.app(self._world, app.id, self._page(app.slug))

    async def installation_of(self, request: Request) -> Response:
        app = app_of(self._world, request)
        full_name = f"{request.path_params['owner']}/{request.path_params['name']}"
        for one in self._world.installations.values():
            if one.app is app and full_name in one.repositories:
                owner = {"id": self._world.repositories[full_name].owner}
                shown = {"id": one.id, "account": owner, "permissions": one.permissions, "app_slug": app.slug}
                return JSONResponse(shown)
        raise ApiRefusal(404, "Not Found")

    async def installations(self, request: Request) -> Response:
        app = app_of(self._world, request)
        mine = [one for one in self._world.installations.values() if one.app is app]
        return JSONResponse([shapes.installation(one) for one in mine])

    async def repositories(self, request: Request) -> Response:
        token = token_of(self._world, request)
        if token.installation is None:
            raise ApiRefusal(403, "You must authenticate with an installation access token")
        names = sorted(token.repositories & set(self._world.repositories))
        base = str(request.base_url).rstrip("/")
        shown = [shapes.repository(self._world.repositories[name], base) for name in names]
        most = int(request.query_params.get("per_page", 30))
        return JSONResponse({"total_count": len(shown), "repositories": shown[:most]})

    async def mint(self, request: Request) -> Response:
        app = app_of(self._world, request)
        place = self._world.installations.get(int(request.path_params["id"]))
        if place is None or place.app is not app:
            raise ApiRefusal(404, "Not Found")
        if place.suspended:
            raise ApiRefusal(403, "This installation has been suspended")
        wanted: dict[str, Any] = await request.json()
        permissions = wanted.get("permissions", place.permissions)
        for name, level in permissions.items():
            if ORDER.get(level, 9) > ORDER[place.permissions.get(name, "none")]:
                raise ApiRefusal(422, "The permissions requested are not granted to this installation.")
        token = self._world.token(
            user=app.user,
            installation=place,
            permissions=permissions,
            repositories=_narrowed(self._world, place, wanted),
        )
        shown = {"token": token.value, "expires_at": stamp(token.until), "permissions": permissions}
        return JSONResponse(shown, 201)

    async def revoke(self, request: Request) -> Response:
        token = token_of(self._world, request)
        del self._world.tokens[token.value]
        return Response(status_code=204)

    async def user(self, request: Request) -> Response:
        token = token_of(self._world, request)
        if token.installation is not None:
            raise ApiRefusal(403, "Resource not accessible by integration")
        return JSONResponse(shapes.user(token.user))

    async def user_by_id(self, request: Request) -> Response:
        """Anybody, by their number."""
        token_of(self._world, request)
        for one in self._world.users.values():
            if one.id == request.path_params["id"]:
                return JSONResponse(shapes.user(one))
        raise ApiRefusal(404, "Not Found")

    async def user_by_login(self, request: Request) -> Response:
        """Anybody by their login; Apps have one, too."""
        token_of(self._world, request)
        login = request.path_params["login"]
        bots = [app.user for app in self._world.apps.values() if app.user.login == login]
        found = bots[0] if bots else self._world.users.get(login)
        if found is None:
            raise ApiRefusal(404, "Not Found")
        return JSONResponse(shapes.user(found))

    async def deliveries(self, request: Request) -> Response:
        app = app_of(self._world, request)
        mine = [one for one in self._world.deliveries if one.app == app.id]
        rows = sorted(mine, key=lambda one: -one.id)
        cursor = int(request.query_params.get("cursor", 0))
        rows = [one for one in rows if not cursor or one.id < cursor]
        return JSONResponse(
            [shapes.delivery(one) for one in rows[: int(request.query_params.get("per_page", 30))]]
        )

    def _delivery(self, request: Request) -> Delivery:
        app = app_of(self._world, request)
        for one in self._world.deliveries:
            if (one.app, one.id) == (app.id, int(request.path_params["id"])):
                return one
        raise ApiRefusal(404, "Not Found")

    async def delivery(self, request: Request) -> Response:
        return JSONResponse(shapes.delivery(self._delivery(request), whole=True))

    async def redeliver(self, request: Request) -> Response:
        app = app_of(self._world, request)
        await self._redeliver(app, self._delivery(request))
        return JSONResponse({}, 202)


def _narrowed(world: GitHubWorld, place: Installation, wanted: dict[str, Any]) -> set[str]:
    if "repository_ids" in wanted:
        found = [world.by_number(number) for number in wanted["repository_ids"]]
        names = {one.full_name for one in found if one and one.full_name in place.repositories}
        if len(names) != len(wanted["repository_ids"]):
            raise ApiRefusal(422, "There is at least one repository that does not exist or is not accessible")
        return names
    if "repositories" not in wanted:
        return set(place.repositories)
    names = {
        full_name for full_name in place.repositories if full_name.partition("/")[2] in wanted["repositories"]
    }
    if len(names) != len(wanted["repositories"]):
        raise ApiRefusal(422, "There is at least one repository that does not exist or is not accessible")
    return names
