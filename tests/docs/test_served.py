"""The docs as the server shows them: every link of every page leads somewhere."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urldefrag, urljoin

import pytest

from support.web_server import House


@pytest.fixture(scope="module")
def house(tmp_path_factory: pytest.TempPathFactory) -> Iterator[House]:
    folder: Path = tmp_path_factory.mktemp("house") / "data"
    folder.mkdir(mode=0o700)
    house = House(folder, roles=("web",))
    yield house
    house.close()


def test_every_link_of_every_page_leads_somewhere(house: House) -> None:
    browser = house.browser(accept="text/html")
    browser.follow(house.link(house.owner()))
    pages: dict[str, tuple[int, str]] = {}

    def page(path: str) -> tuple[int, str]:
        if path not in pages:
            answer = browser.get(path, follow_redirects=True)
            pages[path] = (answer.status_code, answer.text)
        return pages[path]

    broken, waiting, walked = [], ["/docs"], {"/docs"}
    while waiting:
        here = waiting.pop()
        for link in re.findall(r'<a [^>]*href="([^"]+)"', page(here)[1].partition("<main")[2]):
            path, place = urldefrag(urljoin(here, link))
            if re.match(r"[a-z]+:", path):
                continue
            status, text = page(path)
            if status != 200 or (place and f'id="{place}"' not in text):
                broken.append(f"{here}: {link}")
            if path.startswith("/docs") and path not in walked:
                walked.add(path)
                waiting.append(path)
    assert broken == []
    assert len(walked) > 20
