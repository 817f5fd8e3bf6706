"""Files both ways: into the room and the shell, back onto the page, and never acting in the browser."""

from __future__ import annotations

import asyncio
import base64
import json
from pathlib import Path
from typing import Any

import pytest

from agent.pictures import PDF, PNG
from gofer.web.chat import endpoints
from gofer_standins.anthropic import Anthropic, call, calls, say
from gofer_standins.loopback import serve
from support.web_server import House
from webchat.visiting import Visit


def put(visit: Visit, *given: tuple[str, bytes, str]) -> Any:
    return visit.post("/files", files=[("file", each) for each in given])


def test_a_file_reaches_the_shell_and_another_comes_back(visit: Visit) -> None:
    (kept,) = put(visit, ("notes.txt", b"remember the milk", "text/plain")).json()["files"]
    with visit.line() as line:
        sending = json.dumps({"path": "inbox/1-1-notes.txt"})
        said = f"$ cat inbox/1-1-notes.txt\n$tool send_file {sending}"
        line.say(said, files=[{"hash": kept["hash"], "name": kept["name"]}])
        assert "remember the milk" in line.answers()[0]
        cards = "".join(line.of("call"))
        assert f"/files/{kept['hash']}" in cards
        assert f"/files/{kept['hash']}" in line.of("said")[0]


def test_a_picture_is_shown_and_everything_else_is_downloaded(visit: Visit) -> None:
    given = [
        ("dot.png", PNG, "text/html"),
        ("page.html", b"<script>alert(1)</script>", "text/html"),
        ("image.svg", b"<svg onload='alert(1)'/>", "image/svg+xml"),
        ("liar.png", b"<script>alert(1)</script>", "image/png"),
    ]
    served = {}
    for each in given:
        (kept,) = put(visit, each).json()["files"]
        answer = visit.browser.get(f"/chat/{visit.room}/files/{kept['hash']}?name={each[0]}")
        served[each[0]] = (
            answer.headers["content-type"],
            answer.headers["content-disposition"].split(";")[0],
        )
        assert answer.content == each[1]
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert "sandbox" in answer.headers["content-security-policy"]
        assert "script-src" not in answer.headers["content-security-policy"]
    assert served["dot.png"] == ("image/png", "inline")
    for name in ("page.html", "image.svg", "liar.png"):
        assert served[name] == ("application/octet-stream", "attachment")


def test_names_neither_lead_elsewhere_nor_hide(visit: Visit) -> None:
    hostile = '../../etc/\u202epass"wd\r\nx: y'
    (kept,) = put(visit, (hostile, b"x", "text/plain")).json()["files"]
    assert "/" not in kept["name"]
    assert "\u202e" not in kept["name"]
    answer = visit.browser.client.get(f"/chat/{visit.room}/files/{kept['hash']}", params={"name": hostile})
    assert "x" not in answer.headers
    assert "\n" not in answer.headers["content-disposition"]


def test_too_large_empty_and_unknown_are_refused(visit: Visit, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(endpoints, "MAX_FILE", 1000)
    assert put(visit, ("big.bin", b"x" * 1001, "application/octet-stream")).status_code == 400
    huge = put(visit, ("huge.bin", b"x" * endpoints.MAX_BODY, "application/octet-stream"))
    assert (huge.status_code, "up to 20 MB" in huge.json()["detail"]) == (413, True)
    assert put(visit, ("empty.txt", b"", "text/plain")).status_code == 400
    assert visit.post("/files", data={"other": "x"}).status_code == 400
    assert visit.browser.get(f"/chat/{visit.room}/files/{'0' * 64}").status_code == 404
    assert visit.browser.get(f"/chat/{visit.room}/files/..passwd").status_code == 404
    monkeypatch.setattr(endpoints, "MAX_IN_ROOM", 10)
    assert "Begin a new one" in put(visit, ("one.txt", b"x" * 11, "text/plain")).json()["detail"]


def test_a_file_is_its_rooms_alone(house: House, visit: Visit) -> None:
    (kept,) = put(visit, ("mine.txt", b"mine", "text/plain")).json()["files"]
    other = Visit(house, house.member("olga", "operator", password=""))
    assert other.browser.get(f"/chat/{visit.room}/files/{kept['hash']}").status_code == 404
    assert other.browser.get(f"/chat/{other.room}/files/{kept['hash']}").status_code == 404


async def test_a_pdf_reaches_the_model_and_the_shell(tmp_path: Path) -> None:
    model = Anthropic([calls(call("bash", command="head -c 5 inbox/1-1-*")), say("A contract.")])
    (tmp_path / "data").mkdir(mode=0o700)
    async with serve(model.app) as url:
        given: dict[str, Any] = {
            "anthropic_key": model.key,
            "anthropic_base_url": url,
            "sandbox": "unconfined",
        }
        house = await asyncio.to_thread(House, tmp_path / "data", **given)
        try:
            await asyncio.to_thread(_ask_about_a_pdf, house)
        finally:
            await asyncio.to_thread(house.close)
    assert model.refused == []
    for request in (model.received[0], model.received[1]):
        (shown,) = [block for block in request["messages"][0]["content"] if block["type"] == "document"]
        assert base64.b64decode(shown["source"]["data"]) == PDF
        assert shown["title"] == "contract.pdf"
    assert "%PDF-" in str(model.received[1]["messages"][-1])


def _ask_about_a_pdf(house: House) -> None:
    visit = Visit(house, house.owner())
    (kept,) = put(visit, ("contract.pdf", PDF, "application/octet-stream")).json()["files"]
    with visit.line() as line:
        line.say("What is this?", files=[{"hash": kept["hash"], "name": kept["name"]}])
        assert "A contract." in line.answers()[0]
