"""What is refused: a page for who looks at pages, problem+json for everything else."""

from __future__ import annotations

import re

import pytest
from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.testclient import TestClient

from gofer.errors import ConfigError, GoferError, StoreUnavailable
from gofer.web.auth.sessions import csrf_for
from gofer.web.dashboard.error_pages import Refusing, crash_page
from gofer.web.problems import on_gofer_error
from support.web_server import Browser, House

AS_BROWSER = {"accept": "text/html,application/xhtml+xml,*/*;q=0.8"}


@pytest.fixture(scope="module")
def viewer(house: House) -> Browser:
    browser = house.browser(**AS_BROWSER)
    browser.follow(house.link(house.member("vera", "viewer")))
    return browser


@pytest.mark.parametrize(
    ("method", "path", "status", "words"),
    [
        ("GET", "/secrets", 403, "This needs the role operator; you have viewer."),
        ("GET", "/chat", 403, "This needs the role operator"),
        ("POST", "/secrets", 403, "This needs the role owner"),
        ("POST", "/logout", 403, "The form is stale or came from elsewhere."),
        ("GET", "/nowhere", 404, "There is nothing at this address."),
        ("GET", "/docs/nothing", 404, "There is no"),
        ("GET", "/runs/999999999999", 404, "999999999999"),
        ("GET", f"/runs/{10**20}", 404, "There is no number 1000"),
        ("GET", f"/inbox/{10**20}", 404, "There is no number 1000"),
        ("GET", f"/runs?before={10**20}", 400, "before: "),
        ("GET", "/runs?before=²", 400, "before: "),
        ("GET", "/runs/new?after=²", 400, "after: must be a number."),
        ("DELETE", "/runs", 405, "This address cannot be asked like that."),
        ("GET", "/runs?x=%00", 400, "character"),
    ],
)
def test_a_person_gets_a_page_with_a_way_on(
    viewer: Browser, method: str, path: str, status: int, words: str
) -> None:
    answer = viewer.client.request(method, path)
    assert answer.status_code == status
    assert answer.headers["content-type"].startswith("text/html")
    assert "default-src 'none'" in answer.headers["content-security-policy"]
    assert words in answer.text
    assert 'aria-label="Pages"' in answer.text or status == 400
    assert 'href="/"' in answer.text


def test_who_is_not_signed_in_gets_one_without_the_frame(house: House) -> None:
    browser = house.browser(**AS_BROWSER)
    answer = browser.get("/nowhere")
    assert (answer.status_code, 'aria-label="Pages"' in answer.text) == (404, False)
    assert "Not found" in answer.text
    wrong = browser.get("/", headers={"host": "elsewhere.example"})
    assert (wrong.status_code, wrong.headers["content-type"]) == (421, "text/html; charset=utf-8")
    assert "GOFER_ALLOWED_HOSTS" in wrong.text


def test_the_menu_offers_a_viewer_only_what_they_may_see(viewer: Browser) -> None:
    home = viewer.get("/welcome", follow_redirects=True)
    assert home.url.path == "/", "who only looks has nothing to set up"
    menu = home.text.partition('<nav class="nav"')[2].partition("</nav>")[0]
    offered = re.findall(r'href="(/[a-z]*)"', menu)
    assert {"/", "/runs", "/conversations"} <= set(offered)
    assert "/chat" not in offered
    for path in offered:
        page = viewer.get(path, follow_redirects=True)
        assert page.status_code == 200, path
        assert not re.search(r'href="/chat\b', page.text), path


def test_programs_get_problems(house: House, viewer: Browser) -> None:
    csrf = {"x-gofer-csrf": csrf_for(viewer.cookie)}
    for path, headers in (("/nowhere", {"accept": "*/*"}), ("/api/v1/nowhere", {}), ("/hooks/x", {})):
        answer = viewer.client.request("POST", path, headers={**csrf, **headers})
        assert answer.headers["content-type"] == "application/problem+json", path
        assert answer.json()["status"] == answer.status_code in (404, 401)


@pytest.mark.parametrize(
    ("error", "status", "words"),
    [
        (StoreUnavailable("Postgres cannot be reached."), 503, "Postgres cannot be reached."),
        (ConfigError("The agent is called twice."), 422, "The agent is called twice."),
        (RuntimeError("the secret words of a traceback"), 500, "The log has the details"),
    ],
)
def test_also_when_the_database_is_away_or_something_breaks(
    house: House, error: Exception, status: int, words: str
) -> None:
    async def fail(request: Request) -> Response:
        raise error

    app = Starlette(
        routes=[Route("/runs", fail)],
        middleware=[Middleware(Refusing)],
        exception_handlers={GoferError: on_gofer_error, Exception: crash_page},
    )
    app.state.renderer = house.app.state.renderer
    client = TestClient(app, raise_server_exceptions=False)
    shown = client.get("/runs", headers=AS_BROWSER)
    assert (shown.status_code, shown.headers["content-type"]) == (status, "text/html; charset=utf-8")
    assert words in shown.text
    assert "traceback" not in shown.text
    assert ("Try again" in shown.text) == (status == 503)
    assert shown.headers.get("retry-after") == ("5" if status == 503 else None)
    assert client.get("/runs").json()["status"] == status
