"""Connecting a bot, and what may become of the connection: set up, watched, rotated, stalled, removed."""

from __future__ import annotations

import asyncio
import inspect
import re
import socket
from functools import partial
from itertools import pairwise
from pathlib import Path

import httpcore2
import pytest
from structlog.testing import capture_logs

from gofer.app import open_app
from gofer.connections.changes import invite
from gofer.connections.health import disconnect, health_of, set_up, watch
from gofer.errors import Conflict
from gofer.identity import new_code
from gofer.intake.polling import FIRST_PAUSE
from gofer.secrets.secret_store import put_secret
from gofer.settings import Settings
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.vault.redaction import Secret
from gofer.web.app import public_app
from gofer.web.auth.members import first_owner, new_link
from gofer.web.server import listening as serving
from gofer_standins.telegram import Telegram
from gofer_telegram import setup
from gofer_telegram.client import CONFLICT
from gofer_telegram.client import Settings as TelegramSettings
from gofer_telegram.updates import WANTED
from support.patience import eventually
from support.web_server import Browser, csrf_in
from telegram.house import House, open_house
from telegram.proxies import LOGIN, HttpProxy, SocksProxy, certificate, tls_before
from telegram.proxies import serving as proxying


@pytest.mark.parametrize("webhook", [False, True], ids=["polling", "webhook"])
async def test_connecting_says_what_it_did_and_drops_nothing(
    telegram: Telegram, tmp_path: Path, webhook: bool
) -> None:
    async with open_house(telegram, tmp_path / "data", webhook=webhook) as house:
        health = await set_up(house.platform, house.connection_id)
        assert health.ok
        assert "@gofer_rehearsal_bot is ready" in health.line
        assert "privacy mode" in health.line, "a bot that hears only what is meant for it says so"
        scopes = {
            call.parameters["scope"]["type"]: {one["command"] for one in call.parameters["commands"]}
            for call in telegram.calls("setMyCommands")
        }
        assert scopes["all_private_chats"] >= {"start", "help", "new", "stop", "status", "cost", "settings"}
        assert scopes["all_group_chats"] < scopes["all_private_chats"]
        asked = telegram.calls("setWebhook" if webhook else "deleteWebhook")
        assert all(call.parameters["drop_pending_updates"] is False for call in asked)
        if webhook:
            assert asked[-1].parameters["url"].endswith(f"/hooks/{house.connection_id}")
            assert len(asked[-1].parameters["secret_token"]) >= 32
            assert set(asked[-1].parameters["allowed_updates"]) == set(WANTED)
        telegram.methods.privacy = False
        assert "privacy" not in (await set_up(house.platform, house.connection_id)).line


async def test_a_bot_is_added_on_the_dashboard(telegram: Telegram, tmp_path: Path) -> None:
    """A wrong token is named and can be replaced; the right one leads to a code that pairs."""
    settings = Settings(data_dir=tmp_path / "data", sandbox="off", poll_interval=0.1)
    with socket.create_server(("127.0.0.1", 0)) as door:
        door.setblocking(False)
        here = f"http://127.0.0.1:{door.getsockname()[1]}"
        async with (
            open_app(settings, roles=frozenset({"web", "worker"})) as platform,
            serving(public_app(platform), door),
        ):
            owner = await platform.database.write(first_owner)
            link = await platform.database.write(partial(new_link, member_id=owner.id))
            code = await asyncio.to_thread(_add_in_a_browser, here, link, telegram)
            ann = telegram.world.add_person("Ann")
            chat = telegram.world.private(ann)
            telegram.phones.say(ann, chat, f"/start {code}")
            await eventually(lambda: any("You are paired" in text for text in telegram.said(chat)))


def _add_in_a_browser(here: str, link: str, telegram: Telegram) -> str:
    """Returns the pairing code that the page shows."""
    form, wrong = "/connections/new/telegram", "1:a-token-of-nobody-for-rehearsals-only-00"
    browser = Browser(here, {"accept": "text/html"})
    with browser.client:
        browser.follow(link)
        shown = browser.get(form).text
        assert 'name="secret.token" type="password"' in shown
        assert "@BotFather" in shown
        given = {"csrf": csrf_in(shown), "name": "phone", "setting.api_url": telegram.url}
        assert browser.post(form, **given).status_code == 422, "not without a token"
        added = browser.post(form, **given, **{"secret.token": wrong})
        page = browser.get(added.headers["location"]).text
        assert "Telegram refuses the bot token. Ask @BotFather for the current one" in page
        assert wrong not in page
        _, _, connection = added.headers["location"].partition("/connections/")
        rotated = {"csrf": given["csrf"], "owner": connection, "name": "token", "value": telegram.token}
        page = browser.get(browser.post("/secrets", **rotated).headers["location"]).text
        assert "@gofer_rehearsal_bot is ready: updates are fetched by long polling" in page
        assert "privacy mode" in page
        browser.post(f"/connections/{connection}/remove", csrf=given["csrf"])
        added = browser.post(form, **given, **{"secret.token": telegram.token})
        page = browser.get(added.headers["location"]).text
        assert "long polling" in page, "how its updates come in"
        found = re.search(r"/start ([0-9A-Z]{8})\b", page)
        assert found is not None, page
        return found[1]


async def test_a_rotated_token_is_used_from_the_next_call_and_nothing_is_lost(house: House) -> None:
    telegram, platform = house.telegram, house.platform
    ann, chat = await house.owner()
    telegram.phones.say(ann, chat, "before")
    await house.answers(chat, 1)
    telegram.token = f"{telegram.token.partition(':')[0]}:another-token-for-rehearsals-only-000"
    telegram.updates.interrupt()
    telegram.phones.say(ann, chat, "meanwhile")
    await eventually(lambda: any(call.status == 401 for call in telegram.calls("getUpdates")))
    refused = await health_of(platform, house.connection_id)
    assert "Telegram refuses the bot token" in refused.line
    assert refused.fix == f"gofer secrets put token --owner {house.connection_id}"
    await platform.database.write(
        partial(
            put_secret,
            vault=platform.vault,
            workspace_id=FIRST_WORKSPACE,
            owner=house.connection_id,
            name="token",
            value=Secret(telegram.token),
        )
    )
    await platform.secrets_changed()
    assert (await set_up(platform, house.connection_id)).ok
    assert len(await house.answers(chat, 2)) == 2


async def test_two_readers_of_one_token_are_explained_where_the_operator_looks(house: House) -> None:
    telegram = house.telegram
    await eventually(lambda: telegram.updates._poller is not None)
    await telegram.updates.get(timeout=0)
    await eventually(lambda: any(call.status == 409 for call in telegram.calls("getUpdates")))
    await house.until_health("409", ok=False)
    told = await health_of(house.platform, house.connection_id)
    assert CONFLICT in told.line
    assert (await set_up(house.platform, house.connection_id)).ok
    ann, chat = await house.owner()
    telegram.phones.say(ann, chat, "hello")
    await house.answers(chat, 1)


async def test_a_poll_that_hangs_is_given_up_and_begun_again(
    telegram: Telegram, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "STALLED_AFTER", 0.5)
    telegram.fail("getUpdates", stall=600)
    async with open_house(telegram, tmp_path / "data") as house:
        await house.until_health("interrupted", ok=False)
        ann, chat = await house.owner()
        telegram.phones.say(ann, chat, "hello")
        await set_up(house.platform, house.connection_id)
        await house.answers(chat, 1)


async def test_what_telegram_complains_about_is_watched_and_told(telegram: Telegram, tmp_path: Path) -> None:
    async with open_house(telegram, tmp_path / "data", webhook=True) as house:
        await house.settled()
        assert telegram.updates.webhook is not None
        telegram.updates.webhook.secret = "another"
        ann, chat = await house.owner()
        with capture_logs() as lines:
            watching = asyncio.create_task(watch(house.platform, every=0.05))
            telegram.phones.say(ann, chat, "hello")
            await eventually(lambda: any(line["event"] == "connection.unhealthy" for line in lines))
            watching.cancel()
        told = await health_of(house.platform, house.connection_id)
        assert "1 waiting; Telegram's last error: Wrong response from the webhook: 401" in told.line
        await set_up(house.platform, house.connection_id)
        await house.answers(chat, 1)


async def test_a_webhook_that_is_not_ours_is_told_by_its_host_alone(
    telegram: Telegram, tmp_path: Path
) -> None:
    async with open_house(telegram, tmp_path / "data") as house:
        telegram.updates.set_webhook("https://bots.example/secret-path")
        told = await health_of(house.platform, house.connection_id)
        assert "another program's webhook (bots.example)" in told.line
        assert "secret-path" not in told.line
        await set_up(house.platform, house.connection_id)
        assert telegram.updates.webhook is None


async def test_a_removed_connection_leaves_the_bot_as_it_was_and_a_used_one_is_kept(house: House) -> None:
    telegram, platform = house.telegram, house.platform
    await disconnect(platform, house.connection_id, by="test")
    assert {call.parameters["scope"]["type"] for call in telegram.calls("deleteMyCommands")} == {
        "all_private_chats",
        "all_group_chats",
    }
    assert telegram.calls("deleteWebhook")[-1].parameters["drop_pending_updates"] is False
    ann = telegram.world.add_person("Ann")
    chat = telegram.world.private(ann)
    telegram.phones.say(ann, chat, "is anybody there?")
    assert len(telegram.updates.pending) == 1, "what comes now waits for whoever connects the bot next"
    again = await house.connect_again()
    await again.let_in(ann)
    await again.answers(chat, 1)
    with pytest.raises(Conflict, match="has conversations"):
        await disconnect(platform, again.connection_id, by="test")


async def test_three_codes_may_be_open_and_have_no_look_alikes(house: House) -> None:
    codes = [await house.code() for _ in range(3)]
    assert all(len(code) == 8 and not set(code) & set("01IOL") for code in codes)
    verb = partial(new_code, workspace_id=FIRST_WORKSPACE, connection_id=house.connection_id, role="owner")
    with pytest.raises(Conflict, match="3 codes are open"):
        await house.platform.database.write(verb)


async def test_what_a_bot_can_do_without_never_fails_its_set_up(telegram: Telegram, tmp_path: Path) -> None:
    async with open_house(telegram, tmp_path / "data", webhook=True) as house:
        telegram.updates.set_webhook("")
        telegram.fail("setMyCommands", status=404, description="Not Found", times=2)
        health = await set_up(house.platform, house.connection_id)
        assert health.ok
        assert "setMyCommands" in health.line, "what failed is named"
        assert "refuses the bot token" not in health.line
        assert telegram.updates.webhook is not None
        connected = await house.platform.accounts.get(house.connection_id)
        assert connected.account.settings["username"] == telegram.bot.username


async def test_a_set_up_waits_when_telegram_says_for_how_long(telegram: Telegram, tmp_path: Path) -> None:
    async with open_house(telegram, tmp_path / "data", webhook=True) as house:
        for method in ("getMe", "setWebhook", "setMyCommands"):
            telegram.fail(method, status=429, retry_after=1)
        health = await set_up(house.platform, house.connection_id)
        assert health.ok
        assert "menu" not in health.line
        assert not any(fault.times for fault in telegram.faults)


async def test_a_webhook_that_is_refused_is_said_and_the_name_is_learnt(
    telegram: Telegram, tmp_path: Path
) -> None:
    async with open_house(telegram, tmp_path / "data", webhook=True) as house:
        await house.settled()  # the set-up at start is a job, which would meet the failure otherwise
        await house.change(username="")
        telegram.fail(
            "setWebhook", status=400, description="Bad Request: bad webhook: IP address 10.0.0.1 is reserved"
        )
        health = await set_up(house.platform, house.connection_id)
        assert not health.ok
        assert "setWebhook: Bad Request: bad webhook" in health.line
        connected = await house.platform.accounts.get(house.connection_id)
        assert connected.account.settings["username"] == telegram.bot.username


async def test_nobody_is_sent_to_a_bot_without_a_name(house: House) -> None:
    await house.change(username="")
    words = await invite(house.platform.database, house.platform.accounts, house.connection_id)
    assert "t.me/?" not in words
    assert "@." not in words
    assert "/start " in words


async def test_a_server_without_such_a_bot_is_not_called_a_refused_token(house: House) -> None:
    await house.change(api_url=f"{house.telegram.url}/nothing-here")
    told = await health_of(house.platform, house.connection_id)
    assert not told.ok
    assert "api_url" in told.line


async def test_a_server_that_answers_polls_at_once_is_asked_less_and_less_often(house: House) -> None:
    telegram = house.telegram
    ann, chat = await house.owner()
    telegram.updates.impatient = True
    telegram.updates.interrupt()
    telegram.phones.say(ann, chat, "hello")
    await house.answers(chat, 1)
    before = len(telegram.calls("getUpdates"))

    def pauses() -> list[float]:
        at = [call.at for call in telegram.calls("getUpdates")[before:]]
        return [later - earlier for earlier, later in pairwise(at)]

    # A busy machine makes a pause longer and none shorter.
    await eventually(lambda: any(pause >= 8 * FIRST_PAUSE for pause in pauses()))
    assert len(pauses()) < 20, "it doubles"
    telegram.phones.say(ann, chat, "and again")
    assert len(await house.answers(chat, 2)) == 2, "and what comes is still taken"


@pytest.mark.parametrize(("scheme", "kind"), [("http", HttpProxy), ("socks5", SocksProxy)])
async def test_a_bot_is_reached_through_the_proxy_of_its_connection(
    telegram: Telegram, tmp_path: Path, scheme: str, kind: type[HttpProxy] | type[SocksProxy]
) -> None:
    proxy = kind()
    async with open_house(telegram, tmp_path / "data") as house, proxying(proxy) as port:
        store = partial(put_secret, vault=house.platform.vault, workspace_id=FIRST_WORKSPACE)
        await house.platform.database.write(
            partial(store, owner=house.connection_id, name="proxy_login", value=Secret(LOGIN))
        )
        await house.change(proxy=f"{scheme}://127.0.0.1:{port}")
        telegram.updates.interrupt()
        before = len(telegram.world.calls)
        ann, chat = await house.owner()
        telegram.phones.send_document(ann, chat, "notes.txt", b"words")
        await house.answers(chat, 1)
        assert (await health_of(house.platform, house.connection_id)).ok
        if scheme == "http":  # which passes each request on by itself
            assert len(proxy.asked) >= len({call.method for call in telegram.world.calls[before:]})
        assert set(proxy.asked) == {telegram.url.removeprefix("http://")}


@pytest.mark.parametrize(
    ("scheme", "kind"), [("http", HttpProxy), ("https", HttpProxy), ("socks5", SocksProxy)]
)
async def test_https_goes_through_the_proxy_unread_and_is_verified_behind_it(
    telegram: Telegram,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    scheme: str,
    kind: type[HttpProxy] | type[SocksProxy],
) -> None:
    """Through CONNECT or SOCKS, with a certificate that the machine's own store vouches for, and with no other."""
    ours, others = certificate(tmp_path / "ours"), certificate(tmp_path / "others")
    monkeypatch.setenv("SSL_CERT_FILE", str(ours))
    # Not the one that tests share.
    monkeypatch.setattr(httpcore2, "default_ssl_context", inspect.unwrap(httpcore2.default_ssl_context))
    proxy = kind()
    async with (
        open_house(telegram, tmp_path / "data") as house,
        proxying(proxy) as port,
        tls_before(telegram.url, ours) as url,
        tls_before(telegram.url, others) as untrusted,
        tls_before(f"http://127.0.0.1:{port}", ours) as secured,
    ):
        store = partial(put_secret, vault=house.platform.vault, workspace_id=FIRST_WORKSPACE)
        await house.platform.database.write(
            partial(store, owner=house.connection_id, name="proxy_login", value=Secret(LOGIN))
        )
        through = secured if scheme == "https" else f"{scheme}://127.0.0.1:{port}"
        await house.change(proxy=through, api_url=url)
        ann, chat = await house.owner()
        telegram.phones.send_document(ann, chat, "notes.txt", b"words")
        await house.answers(chat, 1)
        telegram.phones.say(ann, chat, "and again")
        await house.answers(chat, 2)
        assert (await health_of(house.platform, house.connection_id)).ok
        assert set(proxy.asked) == {url.removeprefix("https://")}
        await house.change(api_url=untrusted)
        told = await health_of(house.platform, house.connection_id)
        assert (told.ok, f"could not be reached through the proxy {through}" in told.line) == (False, True)
        assert f"reaches the proxy {through}" in told.fix


def test_a_proxy_has_an_address_and_no_password_in_it() -> None:
    for wrong in ("ftp://a:1", "127.0.0.1:1080", "http://ann:pw@127.0.0.1:3128", "socks5://a:1/path"):
        with pytest.raises(ValueError, match="proxy"):
            TelegramSettings(proxy=wrong)


@pytest.mark.parametrize("name", ["api_url", "transcribe_url", "proxy"])
@pytest.mark.parametrize("wrong", ["http://[::1", "http://a:port", "http://a:99999"])
def test_an_address_that_nothing_can_be_asked_at_is_refused_when_it_is_set(name: str, wrong: str) -> None:
    with pytest.raises(ValueError, match="must be a URL"):
        TelegramSettings.model_validate({name: wrong})
