"""Which addresses a GitHub has, and that nothing is asked of another one."""

from __future__ import annotations

import httpx2
import pytest
from pydantic import ValidationError

from gofer_github.settings import Settings
from support.github_scene import Scene


@pytest.mark.parametrize(
    ("given", "web", "api"),
    [
        ({}, "https://github.com", "https://api.github.com"),
        ({"web_url": "https://git.acme.test/"}, "https://git.acme.test", "https://git.acme.test/api/v3"),
        (
            {"api_url": "https://git.acme.test/api/v3"},
            "https://git.acme.test",
            "https://git.acme.test/api/v3",
        ),
        ({"web_url": "https://acme.ghe.com"}, "https://acme.ghe.com", "https://api.acme.ghe.com"),
        ({"api_url": "https://api.acme.ghe.com"}, "https://acme.ghe.com", "https://api.acme.ghe.com"),
        ({"web_url": "http://127.0.0.1:1", "api_url": "http://x:2"}, "http://127.0.0.1:1", "http://x:2"),
    ],
)
def test_one_address_is_enough(given: dict[str, str], web: str, api: str) -> None:
    known = Settings.model_validate(given)
    assert (known.web_url, known.api_url) == (web, api)
    assert Settings.model_validate(known.model_dump(mode="json")) == known


@pytest.mark.parametrize("address", ["https://git.acme.test/api/v3", "ftp://git.acme.test", "git.acme.test"])
def test_what_is_no_address_of_a_github_is_refused(address: str) -> None:
    with pytest.raises(ValidationError, match="must be"):
        Settings(web_url=address)


async def test_each_layout_answers_only_where_that_github_would(scene: Scene, public_scene: Scene) -> None:
    for one, right, wrong in (
        (scene, "/api/v3/repos/acme/widgets", "/repos/acme/widgets"),
        (public_scene, "/repos/acme/widgets", "/api/v3/repos/acme/widgets"),
    ):
        token = one.github.world.token(user=one.github.world.user("ada")).value
        address = one.github.api_url.removesuffix("/api/v3")
        async with httpx2.AsyncClient(headers={"authorization": f"Bearer {token}"}) as http:
            assert (await http.get(address + right)).status_code == 200
            assert (await http.get(address + wrong)).status_code == 404
            assert (await http.get(one.github.url + wrong)).status_code == 404
