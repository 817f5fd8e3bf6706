"""Connecting an App or a token, hearing of drift, and working without a public address."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import json
import os
import re
from functools import partial
from html import unescape
from pathlib import Path

import httpx2
import pytest
from sqlalchemy import select

from gofer.connections.health import health_of, set_up
from gofer.connections.setup_flow import begin_setup, finish_setup
from gofer.errors import ConfigError, Conflict, Permanent, Refused
from gofer.integration import ConnectionContext
from gofer.secrets.secret_store import put_secret
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import audit_entries
from gofer.vault.redaction import Secret
from gofer.web.auth.members import first_owner, new_link
from gofer_github import integration
from gofer_github.settings import Settings
from gofer_github.setup import EVENTS, PERMISSIONS, convert, manifest, manifest_page
from gofer_standins.github import GitHubService
from support.command_line import Forked, environment
from support.github_scene import Scene, gofer
from support.patience import eventually, patience, patiently
from support.web_server import Browser, csrf_in


async def test_an_app_is_made_from_a_manifest_with_a_code_that_works_once(scene: Scene) -> None:
    code = scene.github.manifest_code("gofer-acme")
    settings = Settings(web_url=scene.github.url)
    learned, secrets = await convert(settings, code)
    account = ConnectionContext(
        "new", "new", {**settings.model_dump(), **learned}, {k: Secret(v) for k, v in secrets.items()}
    )
    health = await integration.set_up(account)
    assert health.ok, health.line
    assert health.learned["handle"] == "gofer-acme"
    assert health.learned["login"] == "gofer-acme[bot]"
    with pytest.raises(Permanent):
        await convert(settings, code)


def press_the_button(address: str) -> httpx2.Response:
    """What a person does in a browser: look at the page, press its button, be sent back."""
    page = httpx2.get(address).text
    (action,) = re.findall(r'action="([^"]+)"', page)
    fields = dict(re.findall(r'name="([^"]+)" value="([^"]*)"', page))
    assert "push branches of its own" in page, "each permission is explained"
    sent = httpx2.post(unescape(action), data={name: unescape(value) for name, value in fields.items()})
    assert sent.status_code == 302, sent.text
    back = sent.headers["location"]
    forged = httpx2.get(re.sub("state=[^&]+", "state=AbCd", back))
    assert forged.status_code == 400, "somebody else's answer is not taken"
    return httpx2.get(back)


async def test_signing_up_makes_an_app_and_its_connection_in_one_click(scene: Scene, tmp_path: Path) -> None:
    github, data = scene.github, tmp_path / "data"
    given = [f"web_url={github.url}"]
    shown, asked = tmp_path / "shown", tmp_path / "asked"
    process = Forked(
        environment(data, public_url="https://gofer.test"),
        ("connections", "sign-up", "github", "--name", "my-gofer", "--owner", "acme",
         *(word for one in given for word in ("--set", one)), "--json"),
        os.devnull, str(shown), str(asked),
    )  # fmt: skip
    await eventually(lambda: asked.exists() and "\n" in asked.read_text())
    thanks = await asyncio.to_thread(press_the_button, re.findall(r"http://\S+", asked.read_text())[0])
    assert "your terminal" in thanks.text
    assert await asyncio.to_thread(process.wait, patience(60)) == 0, asked.read_text()
    out, problem = shown.read_bytes(), asked.read_bytes()
    made = json.loads(out)
    connection = made["connection"]
    (app,) = [one for one in github.world.apps.values() if one.slug == "my-gofer"]
    assert connection["settings"]["app_id"] == app.id
    assert connection["settings"]["handle"] == "my-gofer"
    assert app.hook_url == f"https://gofer.test/hooks/{connection['id']}"
    assert made["secrets"] == ["private_key", "webhook_secret"]
    assert made["health"]["fix"] == f"Install it: {github.url}/github-apps/my-gofer/installations/new"
    kept = b"".join(path.read_bytes() for path in data.rglob("*") if path.is_file())
    for secret in (app.webhook_secret, "PRIVATE KEY"):
        assert secret.encode() not in kept + out + problem
    assert ("POST", "/organizations/acme/settings/apps/new", 302) in github.calls
    assert ("GET", "/app", 200) in github.calls


async def test_a_sign_up_is_finished_once_with_a_state_of_our_own(scene: Scene, tmp_path: Path) -> None:
    async with gofer(scene, tmp_path / "data") as running:
        platform = running.platform
        asked = {
            "name": "x",
            "settings": {"api_url": scene.github.api_url},
            "owner": "",
            "back_url": "http://x/",
        }
        begun = begin_setup(platform, integration="github", **asked)  # type: ignore[arg-type]
        with pytest.raises(ConfigError):
            begin_setup(platform, integration="hello", **{**asked, "settings": {"reply_url": "http://x/"}})  # type: ignore[arg-type]
        code = scene.github.manifest_code("x")
        for state in ("", "AAAA", "é", begun.state[:-6] + "AAAAAA"):
            with pytest.raises(Refused):
                await finish_setup(platform, state=state, code=code, by="test")
        assert await finish_setup(platform, state=begun.state, code=code, by="test") == begun.connection_id
        with pytest.raises(Conflict):
            await finish_setup(platform, state=begun.state, code=scene.github.manifest_code("y"), by="test")
        owner = await platform.database.write(first_owner)
        links = [await platform.database.write(partial(new_link, member_id=owner.id)) for _ in range(2)]
        here = scene.app.hook_url.partition("/hooks/")[0]
        made = await asyncio.to_thread(sign_up_in_a_browser, here, links, scene)
        entry = await running.rows(select(audit_entries).where(audit_entries.c.action == "sign_ups.finish"))
        kept = b"".join(path.read_bytes() for path in (tmp_path / "data").rglob("*") if path.is_file())
    (app,) = [one for one in scene.github.world.apps.values() if one.slug == "from-the-page"]
    assert app.hook_url == f"http://gofer.test/hooks/{made}"
    assert app.webhook_secret.encode() not in kept
    assert [(one.name, one.status) for one in entry] == [("owner", 303)]


def sign_up_in_a_browser(here: str, links: list[str], scene: Scene) -> str:
    """An owner presses the buttons; returns the connection's id. Somebody else's answer is not taken."""
    with contextlib.ExitStack() as stack:
        owner, other = Browser(here, {}), Browser(here, {})
        for browser, link in zip((owner, other), links, strict=True):
            stack.enter_context(browser.client)
            browser.follow(link)
        return _pressed(here, owner, other, scene.github)


def _pressed(here: str, owner: Browser, other: Browser, github: GitHubService) -> str:
    page = "/connections/sign-up/github"
    assert f'href="{page}"' in owner.get("/welcome").text
    assert f'href="{page}"' in owner.get("/connections").text
    given = {"name": "from-the-page", "setting.web_url": github.url}
    csrf = csrf_in(owner.get(page).text)
    assert owner.client.post(page, data=given).status_code == 403, "not without the page's own token"
    shown = owner.client.post(page, data={**given, "csrf": csrf})
    assert f"form-action 'self' {github.url};" in shown.headers["content-security-policy"]
    assert "clone, and push branches of its own" in shown.text, "each permission is explained"
    assert "hear when the checks on its own branches fail" in shown.text, "and each event"
    (action,) = re.findall(r'action="(http[^"]+)"', shown.text)
    fields = dict(re.findall(r'name="(manifest)" value="([^"]*)"', shown.text))
    sent = httpx2.post(unescape(action), data={name: unescape(value) for name, value in fields.items()})
    back = sent.headers["location"]
    assert back.startswith(f"{here}/connections/sign-up/back?")
    assert httpx2.get(back).headers["location"].startswith("/login"), "nobody in particular"
    assert other.client.get(back).status_code == 401, "not the browser that began it"
    assert owner.client.get(re.sub("state=[^&]+", "state=AbCd", back)).status_code == 401
    done = owner.client.get(back)
    assert done.status_code == 303, done.text
    assert owner.client.get(back).status_code == 401, "once"
    told = owner.get(done.headers["location"]).text
    assert "is installed nowhere yet" in told
    return str(done.headers["location"].rpartition("/")[2])


def test_the_manifest_asks_for_the_least_and_never_for_workflows() -> None:
    made = manifest("Gofer", "https://x.test/hooks/1", "https://x.test/back", "https://x.test")
    assert made["default_permissions"] == {name: level for name, (level, _) in PERMISSIONS.items()}
    assert "workflows" not in made["default_permissions"]
    assert made["default_events"] == list(EVENTS)
    nowhere = manifest("Gofer", None, "https://x.test/back", "https://x.test")["hook_attributes"]
    assert made["hook_attributes"] == {"url": "https://x.test/hooks/1", "active": True}
    assert nowhere["active"], "GitHub lists no deliveries of a hook that is off"
    assert ".invalid/" in nowhere["url"]
    assert "state=abc" in manifest_page(Settings(), "abc")


@pytest.mark.parametrize(
    ("change", "word"),
    [
        (lambda app: app.permissions.pop("contents"), "contents: write"),
        (lambda app: app.permissions.update(issues="read"), "issues: write"),
        (lambda app: app.events.remove("check_suite"), "check_suite"),
        (lambda app: app.permissions.update(workflows="write"), "workflows"),
    ],
)
async def test_drift_is_noticed_and_explained(scene: Scene, change: object, word: str) -> None:
    assert (await integration.health(scene.account())).ok
    change(scene.app)  # type: ignore[operator]
    health = await integration.health(scene.account())
    assert not health.ok
    assert word in health.line
    assert health.fix


async def test_installations_and_their_repositories_appear_by_themselves(scene: Scene) -> None:
    (place,) = scene.github.world.installations.values()
    assert (await integration.health(scene.account())).line == "The App gofer, installed by acme (widgets)."
    scene.github.create_repository("acme/site", {"a": "a"})
    place.repositories.add("acme/site")
    assert "acme (site, widgets)" in (await integration.health(scene.account())).line
    place.permissions = {**place.permissions, "contents": "read"}
    health = await integration.health(scene.account())
    assert (health.ok, health.line) == (False, "acme has not accepted contents: write yet.")
    place.suspended = True
    assert "suspended" in (await integration.health(scene.account())).line


async def test_a_wrong_key_is_said_to_be_wrong(scene: Scene) -> None:
    _, other = scene.github.create_app("other")
    for key in (other, "no key at all"):
        secrets = {**scene.account().secrets, "private_key": Secret(key)}
        health = await integration.health(dataclasses.replace(scene.account(), secrets=secrets))
        assert not health.ok
        assert "key" in health.line
        assert health.fix == f"gofer secrets put private_key --owner {scene.account().id}"


async def test_with_the_right_key_in_place_of_a_wrong_one_what_was_missed_is_fetched(
    scene: Scene, tmp_path: Path
) -> None:
    _, other = scene.github.create_app("other")
    async with gofer(dataclasses.replace(scene, private_key=other), tmp_path / "data") as running:
        scene.app.hook_url = "http://127.0.0.1:9/"
        missed = await scene.github.open_issue("ada", scene.repository, "@gofer are you there?")
        async with patiently(40):
            while not await running.jobs(lambda row: (row.kind, row.state) == ("catch_up", "scheduled")):
                await asyncio.sleep(0.05)
        assert not (await health_of(running.platform, running.connection_id)).ok
        await running.platform.database.write(
            partial(
                put_secret,
                vault=running.platform.vault,
                workspace_id=FIRST_WORKSPACE,
                owner=running.connection_id,
                name="private_key",
                value=Secret(scene.private_key),
            )
        )
        await running.platform.secrets_changed()
        assert (await set_up(running.platform, running.connection_id)).ok
        await running.quiet()
        assert (await health_of(running.platform, running.connection_id)).ok
        assert not await running.jobs(lambda row: row.state == "dead")
    assert len(scene.ours(missed.number)) == 1


async def test_a_plain_token_works_without_an_app(scene: Scene) -> None:
    token = scene.github.world.token(user=scene.github.world.user("ada")).value
    settings = {"web_url": scene.github.url}
    account = ConnectionContext(
        "plain", "plain", settings, {"token": Secret(token), "webhook_secret": Secret("s")}
    )
    health = await integration.set_up(account)
    assert health.ok
    assert health.learned == {"login": "ada"}
    assert [request async for request in integration.catch_up(account, 0)] == []


async def test_without_a_public_address_deliveries_are_polled(scene: Scene, tmp_path: Path) -> None:
    changed = dataclasses.replace(scene)
    async with gofer(changed, tmp_path / "data", public_url="", poll_every=0.1) as running:
        scene.app.hook_url = ""  # GitHub cannot reach us
        for number in (1, 2):
            issue = await scene.github.open_issue("ada", scene.repository, "@gofer are you there?")
            assert issue.number == number
        async with patiently(40):
            while not (scene.ours(1) and scene.ours(2)):
                await asyncio.sleep(0.05)
        await running.quiet()
    assert [len(scene.ours(number)) for number in (1, 2)] == [1, 1]
