"""The documentation site: it has every page, no broken link, a search, and nothing of another host."""

from __future__ import annotations

import functools
import http.server
import os
import shutil
import subprocess
import sys
import threading
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from playwright.sync_api import sync_playwright

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
CONFIGURATION = ROOT / "zensical.toml"


def test_the_navigation_lists_every_page_once() -> None:
    nav = tomllib.loads(CONFIGURATION.read_text(encoding="utf-8"))["project"]["nav"]
    assert sorted(pages(nav)) == sorted(path.relative_to(DOCS).as_posix() for path in DOCS.rglob("*.md"))


def pages(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for inner in entry.values() if isinstance(entry, dict) else entry:
            yield from pages(inner)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The site, built as `make docs` does, from a copy that may be written to."""
    pytest.importorskip("zensical", reason="make docs installs it")
    folder = tmp_path_factory.mktemp("site")
    shutil.copytree(DOCS, folder / "docs")
    shutil.copy(CONFIGURATION, folder)
    build = [str(Path(sys.executable).with_name("zensical")), "build", "--strict"]
    done = subprocess.run(build, cwd=folder, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return folder / ".site"


def test_every_page_is_built_and_every_link_leads_somewhere(built: Path) -> None:
    """`--strict` refuses a link that leads nowhere."""
    written = {path.relative_to(built).as_posix() for path in built.rglob("*.html")}
    named = [path.relative_to(DOCS).with_suffix(".html").as_posix() for path in DOCS.rglob("*.md")]
    assert {name.replace("README.html", "index.html") for name in named} <= written


@pytest.fixture
def url(built: Path) -> Iterator[str]:
    class Quiet(http.server.SimpleHTTPRequestHandler):
        def log_message(self, format: str, *args: Any) -> None:
            pass

    with http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Quiet, directory=built)
    ) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_a_reader_finds_a_page_and_asks_no_other_host(url: str) -> None:
    found = subprocess.run(["sh", ROOT / "scripts" / "browser", "--find"], capture_output=True, text=True)
    if found.returncode:
        required = os.environ.get("GOFER_BROWSER_TESTS") == "required"
        (pytest.fail if required else pytest.skip)(found.stderr)
    asked: list[str] = []
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=found.stdout.strip(), args=["--no-sandbox"])
        page = browser.new_page()
        page.on("request", lambda request: asked.append(request.url))
        page.goto(f"{url}/architecture.html")
        page.wait_for_load_state("networkidle")
        page.keyboard.press("/")
        page.keyboard.type("master key", delay=20)
        page.get_by_text("Secrets and the master key").first.wait_for()
        page.goto(f"{url}/integrations/github.html")
        browser.close()
    assert [address for address in asked if not address.startswith((url, "data:", "blob:"))] == []
