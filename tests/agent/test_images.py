"""Pictures on their way to a model: made smaller where they are larger than it has use for."""

from __future__ import annotations

import base64
import io
from collections.abc import Callable
from functools import partial

import pytest
from PIL import Image

from agent.conftest import Make
from agent.ports import ada
from gofer.agent.conversation import Picture
from gofer.agent.model import Features, ModelRequest, ToolSpec
from gofer.agent.models.anthropic import parameters
from gofer.agent.models.documents import PDF
from gofer.agent.models.images import ENOUGH_SIDE, problem, smaller
from gofer.agent.outcome import Answered
from gofer.runs.agent_files import AgentSpec
from gofer_standins.anthropic import call, calls, fault, say
from gofer_standins.anthropic_rules import problems


def picture(kind: str, size: tuple[int, int], mode: str = "RGB", **how: object) -> bytes:
    made = io.BytesIO()
    Image.new(mode, size, "red").save(made, kind, **how)
    return made.getvalue()


def noise(side: int) -> bytes:
    made = io.BytesIO()
    Image.effect_noise((side, side), 90).save(made, "PNG")
    return made.getvalue()


@pytest.mark.parametrize(
    "draw",  # when the test runs: a picture takes a while, and every process reads every file
    [
        partial(picture, "PNG", (9000, 40)),
        partial(picture, "PNG", (2000, 1000), "RGBA"),
        partial(picture, "GIF", (1700, 20), "P"),
        partial(picture, "JPEG", (6000, 4000)),
        partial(picture, "WEBP", (1700, 1700)),
        partial(noise, 1500),
    ],
    ids=["long", "transparent", "gif", "photo", "webp", "many-bytes"],
)
def test_what_is_too_large_becomes_smaller_and_can_be_shown(draw: Callable[[], bytes]) -> None:
    data = draw()
    made = smaller(data)
    assert problem(made) is None
    assert len(made) < max(len(data), 100_000)
    with Image.open(io.BytesIO(made)) as image:
        assert max(image.size) <= ENOUGH_SIDE


def test_what_is_transparent_does_not_turn_black() -> None:
    clear = io.BytesIO()
    Image.new("RGBA", (2000, 10), (0, 0, 0, 0)).save(clear, "PNG")
    with Image.open(io.BytesIO(smaller(clear.getvalue()))) as image:
        assert image.getpixel((5, 5)) == (255, 255, 255)


def test_a_photo_taken_upright_stays_upright() -> None:
    turned = Image.Exif()
    turned[0x0112] = 6
    with Image.open(io.BytesIO(smaller(picture("JPEG", (4000, 2000), exif=turned)))) as image:
        assert image.height > image.width


@pytest.mark.parametrize(
    "draw",
    [
        partial(picture, "PNG", (90, 60)),
        lambda: picture("PNG", (3000, 20))[:80],
        partial(picture, "BMP", (3000, 10)),
        partial(picture, "PNG", (6_000, 6_000), "1"),
        partial(picture, "PNG", (15_000, 15_000), "1"),
        bytes,
    ],
    ids=["small", "damaged", "unknown", "more than we take apart", "more than Pillow opens", "empty"],
)
def test_what_is_small_or_cannot_be_read_stays_as_it_is(draw: Callable[[], bytes]) -> None:
    data = draw()
    assert smaller(data) is data


async def test_a_model_gets_the_smaller_version_in_each_request_of_a_run(direct: Make) -> None:
    world, service = direct(calls(call("ls")), say("A red field."))
    ref = await world.blobs.put(picture("PNG", (2400, 1600)), "image/png")
    world.inbox.messages = [ada("Look", pictures=(Picture(ref, "image/png"),))]
    await world.run()
    sources = [
        block["source"]
        for request in service.received
        for block in request["messages"][0]["content"]
        if block["type"] == "image"
    ]
    assert [source["media_type"] for source in sources] == ["image/jpeg"] * 2
    with Image.open(io.BytesIO(base64.b64decode(sources[0]["data"]))) as image:
        assert image.size == (1600, 1067)


DOCUMENT = b"%PDF-1.7\n" + b"1 0 obj\n" * 100


async def test_a_pdf_is_shown_to_a_model_that_takes_it_once(direct: Make) -> None:
    world, service = direct(calls(call("ls")), say("It is a contract."))
    ref = await world.blobs.put(DOCUMENT, PDF)
    world.inbox.messages = [ada("Read it.", pictures=(Picture(ref, PDF, "contract.pdf", len(DOCUMENT)),))]
    assert (await world.run()).text == "It is a contract."
    assert service.refused == []
    shown = service.received[1]["messages"][0]["content"][1]
    assert (shown["type"], shown["title"]) == ("document", "contract.pdf")
    assert base64.b64decode(shown["source"]["data"]) == DOCUMENT
    assert "%PDF" not in str(world.journal.lines)


@pytest.mark.parametrize(("pdfs", "data"), [(False, DOCUMENT), (True, b"<html>no PDF at all")])
async def test_a_pdf_that_cannot_be_shown_is_named(direct: Make, pdfs: bool, data: bytes) -> None:
    world, service = direct(say("I will look at the file."))
    world.model.features = Features(pdfs=pdfs)
    ref = await world.blobs.put(data, PDF)
    world.inbox.messages = [ada("Read it.", pictures=(Picture(ref, PDF, "contract.pdf", len(data)),))]
    assert isinstance(await world.run(), Answered)
    assert "the PDF contract.pdf is not shown" in str(service.received[0]["messages"])
    assert service.refused == []


async def test_a_pdf_that_the_provider_refuses_is_left_out_once(rehearse: Make) -> None:
    world, service = await rehearse(fault("bad_image"), say("I could not read it."))
    ref = await world.blobs.put(DOCUMENT, PDF)
    world.inbox.messages = [ada("Read it.", pictures=(Picture(ref, PDF, "contract.pdf", len(DOCUMENT)),))]
    assert isinstance(await world.run(), Answered)
    assert "is not shown" in str(service.received[1]["messages"])


@pytest.mark.parametrize(
    ("given", "effort"), [(False, ""), (True, "high"), ("off", ""), ("low", "low"), ("max", "max")]
)
def test_thinking_has_levels(given: object, effort: str) -> None:
    spec = AgentSpec.model_validate({"name": "gofer", "thinking": given})
    assert spec.effort == effort
    schema = {"type": "object", "properties": {}, "required": [], "additionalProperties": False}
    tool = ToolSpec("x", "y", schema, strict=True)
    request = ModelRequest(
        "s", (tool,), ({"role": "user", "content": [{"type": "text", "text": "Hi"}]},), 100
    )
    body = parameters(request, "claude-sonnet-5-5", effort=spec.effort)
    assert body.get("output_config") == ({"effort": effort} if effort else None)
    assert body["tools"][0]["strict"]
    assert problems(body, {}) == []
