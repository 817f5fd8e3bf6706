"""The first five minutes on the page: each step does what it says, tests only when told, and is honest about it."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select

from gofer.runs.model_keys import ModelKeys
from gofer.secrets.secret_store import delete_secret, secrets_of
from gofer.store.bootstrap import FIRST_WORKSPACE
from gofer.store.tables import connections
from gofer.vault.redaction import Secret
from gofer.web import onboarding
from gofer_standins import loopback
from gofer_standins.anthropic import Anthropic, say
from gofer_standins.openai import OpenAI
from gofer_standins.telegram import Telegram
from support.web_server import Browser, House, csrf_in

KEY = "sk-ant-the-right-key-of-the-tests-0123456789"


@pytest.fixture(scope="module")
def service() -> Anthropic:
    return Anthropic(lambda body: say("ok"), key=KEY)


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory, service: Anthropic) -> Iterator[House]:
    folder = tmp_path_factory.mktemp("house") / "data"
    folder.mkdir(mode=0o700)
    house = House(folder)
    serving = loopback.serve(service.app)
    house.settings = house.platform.settings = house.platform.settings.model_copy(
        update={"anthropic_base_url": house.run(serving.__aenter__())}
    )
    yield house
    house.run(serving.__aexit__(None, None, None))
    house.close()


@pytest.fixture(scope="module")
def owner(house: House) -> Browser:
    browser = house.browser()
    done = browser.follow(house.link(house.owner()))
    assert done.headers["location"] == "/welcome"
    return browser


def do(browser: Browser, path: str, **fields: str) -> Any:
    return browser.post(f"/welcome{path}", csrf=csrf_in(browser.get("/welcome").text), **fields)


def keys(house: House) -> dict[str, Any]:
    kept = house.read(partial(secrets_of, vault=house.platform.vault, workspace_id=FIRST_WORKSPACE, owner=""))
    return {name: secret.reveal() for name, secret in kept.items()}


def test_a_fresh_install_says_that_it_works_without_a_key(owner: Browser) -> None:
    page = owner.get("/welcome").text
    assert "works at once" in page
    assert "No model key" in page


def test_a_key_that_answers_nothing_yet_is_not_said_to(house: House, owner: Browser) -> None:
    answer = do(owner, "/model", provider="openai", key="sk-of-a-compatible-server").text
    assert keys(house) == {"openai_key": "sk-of-a-compatible-server"}
    assert "not in use yet" in answer
    assert "It was not tested." in answer
    assert "for agents that name it" in answer
    assert "No model key" not in answer
    assert "openai/gpt-5" in answer
    house.write(delete_secret, workspace_id=FIRST_WORKSPACE, owner="", name="openai_key")


def test_a_compatible_server_is_asked_for_its_models(
    house: House, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    service = OpenAI((), key="sk-of-a-compatible-server", models=("large", "<b>small"))
    serving = loopback.serve(service.app)
    url = house.run(serving.__aenter__())
    settings = house.platform.settings.model_copy(update={"openai_base_url": f"{url}/v1"})
    monkeypatch.setattr(house.platform, "settings", settings)
    refused = do(owner, "/model", provider="openai", key="sk-wrong", test="1")
    assert (refused.status_code, keys(house)) == (422, {})
    assert "refuses the key" in refused.text
    kept = do(owner, "/model", provider="openai", key=service.key, test="1").text
    assert keys(house) == {"openai_key": service.key}
    assert "has 2 models: large, &lt;b&gt;small." in kept
    service.key = ""
    assert "tells them to anybody" in do(owner, "/model/test", provider="openai").text
    house.run(serving.__aexit__(None, None, None))
    assert "cannot be reached" in do(owner, "/model/test", provider="openai").text
    house.write(delete_secret, workspace_id=FIRST_WORKSPACE, owner="", name="openai_key")


def test_a_key_that_is_refused_is_not_kept_and_one_that_works_is_live(
    house: House, owner: Browser, service: Anthropic
) -> None:
    refused = do(owner, "/model", key="sk-ant-a-wrong-key-of-the-tests", test="1")
    assert refused.status_code == 422
    assert "Not kept" in refused.text
    assert "Check the key" in refused.text
    assert keys(house) == {}
    assert do(owner, "/model", key="two words").status_code == 400
    untested = do(owner, "/model", key=KEY)
    assert "It was not tested." in untested.text
    assert service.received == []
    assert "answered in" in do(owner, "/model/test").text
    assert len(service.received) == 1
    assert keys(house) == {"anthropic_key": KEY}
    assert KEY not in untested.text + owner.get("/welcome").text
    platform = house.platform
    known = ModelKeys(
        settings=platform.settings, database=platform.database, vault=platform.vault, http=platform.http
    )
    model = house.run(known.catalogue(FIRST_WORKSPACE)).resolve("auto")
    assert model.startswith("anthropic/")
    for used, told in (("another_key", True), ("anthropic_key", False)):
        platform.uses.add(FIRST_WORKSPACE, "", used)
        assert ("not yet" in row_of(owner, "anthropic_key")) is told


def test_a_test_that_reaches_nobody_does_not_blame_the_key(
    house: House, owner: Browser, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(
        house.platform,
        "settings",
        house.settings.model_copy(update={"anthropic_base_url": "http://127.0.0.1:9"}),
    )
    told = do(owner, "/model", key=KEY, test="1").text
    assert "The connection failed" in told
    assert "Check the key" not in told
    assert "reaches the provider" in told


def row_of(browser: Browser, name: str) -> str:
    """What the page of secrets says of one."""
    return browser.get("/secrets").text.split(f">{name}</code></td>")[1].split("</tr>")[0]


def test_a_bot_that_cannot_be_reached_leaves_nothing_behind(house: House, owner: Browser) -> None:
    refused = do(owner, "/telegram", token="not a token")
    assert refused.status_code == 422
    assert "Not connected" in refused.text
    assert do(owner, "/github", app_id="x").status_code == 400
    assert do(owner, "/github").status_code == 400
    made = house.read(
        lambda connection: list(connection.execute(select(connections.c.integration)).scalars())
    )
    assert "telegram" not in made
    assert "github" not in made


def test_a_bot_that_is_connected_invites_and_can_be_tested(house: House, owner: Browser) -> None:
    telegram = Telegram()
    house.run(telegram.__aenter__())
    try:
        secrets = {"token": Secret(telegram.token)}
        made = house.run(
            onboarding._connect(house.platform, "telegram", {"api_url": telegram.url}, secrets, "test")
        )
        assert made.ok
        assert "/start" in made.invitation
        page = owner.get("/welcome").text
        assert "nothing heard yet" in page
        test = page.split('action="/welcome/telegram/')[1].split('"')[0]
        assert do(owner, f"/telegram/{test}").status_code == 200
    finally:
        house.run(telegram.__aexit__(None, None, None))


def test_only_an_owner_sets_it_up_and_only_from_the_page(house: House, owner: Browser) -> None:
    assert owner.post("/welcome/model", key=KEY).status_code == 403
    viewer = house.browser()
    viewer.follow(house.link(house.member("vera", "viewer", password="")))
    assert viewer.get("/welcome").headers["location"] == "/"
    worker = house.browser()
    worker.follow(house.link(house.member("olaf", "operator", password="")))
    assert "Keep the key" not in worker.get("/welcome").text
    assert do(worker, "/model", key=KEY).status_code == 403
    assert do(owner, "/telegram/webchat_none/test").status_code == 404


def test_the_first_agent_gets_a_folder_of_its_own(house: House, owner: Browser) -> None:
    page = owner.get("/welcome").text
    assert "Make the folder" in page
    made = owner.post("/agents/new", name="gofer", csrf=csrf_in(page))
    assert made.headers["location"].startswith("/agents/gofer")
    assert (house.settings.data_dir / "agents" / "gofer" / "SOUL.md").exists()
    assert "it has a folder" in owner.get("/welcome").text


def test_the_page_shows_the_doctors_checks(owner: Browser) -> None:
    page = owner.get("/welcome/checks").text
    for check in (
        "python",
        "data directory",
        "database",
        "master key",
        "sandbox",
        "model",
        "disk",
        "versions",
    ):
        assert f"<strong>{check}</strong>" in page


def test_the_docs_are_there_and_nothing_else(owner: Browser) -> None:
    assert 'id="the-data-directory"' in owner.get("/docs/operations.md").text
    assert "integrations/telegram.md" in owner.get("/docs").text
    for path in ("nothing.md", "../README.md", "..%2fREADME.md", "operations", "/etc/passwd"):
        assert owner.client.get(f"/docs/{path}").status_code == 404
    every = Path(__file__).parents[2] / "docs"
    for page in every.rglob("*.md"):
        assert owner.get(f"/docs/{page.relative_to(every).as_posix()}").status_code == 200
