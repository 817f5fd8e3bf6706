"""Waiting for a model: said on the page and told on the run's, and the answer comes by itself."""

from __future__ import annotations

import asyncio
import re
from pathlib import Path

import pytest
from sqlalchemy import update

from gofer.store.db_time import now
from gofer.store.tables import jobs
from gofer_standins.anthropic import Anthropic, fault, say
from gofer_standins.loopback import serve
from support.web_server import House
from webchat.visiting import Visit


async def test_who_has_to_wait_for_the_model_is_told_why_and_until_when(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("gofer.agent.turn.SLOW_AFTER", 0.02)
    model = Anthropic([fault("rate_limit", retry_after=3600), say("Here it is.", delay=0.1)])
    (tmp_path / "data").mkdir(mode=0o700)
    async with serve(model.app) as url:
        house = await asyncio.to_thread(
            House, tmp_path / "data", anthropic_key=model.key, anthropic_base_url=url
        )
        try:
            await asyncio.to_thread(_wait, house)
        finally:
            await asyncio.to_thread(house.close)
    assert model.refused == []


def _wait(house: House) -> None:
    visit = Visit(house, house.owner())
    with visit.line() as line:
        line.say("Are you there?")
        (told,) = line.until(lambda: line.state == "retrying" and line.of("reply"))
        assert "The model's provider makes us wait until" in told.replace("&#39;", "'").replace("’", "'")
        found = re.search(r'href="(/runs/[0-9]+)"', told)
        assert found is not None
        page = visit.browser.get(found[1]).text.replace("&#39;", "'")
        assert re.search(r"in (59 min|1 h)</time>, at [^<]*: the model's provider makes us wait", page), page
        house.write(lambda c: c.execute(update(jobs).where(jobs.c.kind == "answer").values(run_at=now())))
        answers = line.answers(2)
        assert len(answers) == 2
        assert "Here it is." in answers[1]
        assert any("takes long to begin" in aside for aside in line.of("slow"))
        assert any(frame["type"] == "text" for frame in line.frames), "its words are seen as they come"


async def test_our_own_sentences_are_not_kept_as_the_models_words(tmp_path: Path) -> None:
    model = Anthropic([say("I will not.", stop_reason="refusal"), fault("invalid"), say("Hello again.")])
    (tmp_path / "data").mkdir(mode=0o700)
    async with serve(model.app) as url:
        house = await asyncio.to_thread(
            House, tmp_path / "data", anthropic_key=model.key, anthropic_base_url=url
        )
        try:
            await asyncio.to_thread(_three_times, house)
        finally:
            await asyncio.to_thread(house.close)
    assert model.refused == []
    seen = model.received[2]["messages"]
    said = [
        block["text"] for message in seen if message["role"] == "assistant" for block in message["content"]
    ]
    assert said == ["I will not."], "and nothing that Gofer said"
    told = " ".join(
        block["text"] for message in seen if message["role"] == "user" for block in message["content"]
    )
    assert "<note>Gofer, not you, then told them: The model declined" in told
    assert "refused the request as invalid" in told


def _three_times(house: House) -> None:
    visit = Visit(house, house.owner())
    with visit.line() as line:
        for number, words in enumerate(("declined to do this", "refused the request", "Hello again."), 1):
            line.say(f"Question {number}")
            assert words in line.answers(number)[-1]
