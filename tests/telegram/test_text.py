"""Markdown on Telegram: entities that fit, parts that break nothing."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from gofer.rehearsal.telegram.rules import checked_text
from gofer_telegram.text import LIMIT, MOST_PARTS, caption, open_fence, opening, render, split, units

FENCE = "```python\n" + "\n".join(f"print({number})  # 🎉" for number in range(400)) + "\n```"
PARAGRAPHS = "\n\n".join(
    f"Paragraph {number}: **bold {number}**, `code`, [a link](https://x.y/{number})." for number in range(90)
)


@pytest.mark.parametrize(
    ("markdown", "text", "kinds"),
    [
        ("plain", "plain", []),
        ("**b** and _i_", "b and i", ["bold", "italic"]),
        ("`x < y`", "x < y", ["code"]),
        ("```py\nx = 1\n```", "x = 1", ["pre"]),
        ("🎉 **b**", "🎉 b", ["bold"]),
        ("- one\n- two", "• one\n• two", []),
        ("[l](https://x.y)", "l", ["text_link"]),
        ("# Head", "Head", ["underline", "bold"]),
        ("", "(an empty answer)", []),
        ("   \n ", "(an empty answer)", []),
    ],
)
def test_rendering(markdown: str, text: str, kinds: list[str]) -> None:
    rendered = render(markdown)
    assert rendered.text == text
    assert [entity["type"] for entity in rendered.entities] == kinds


MARKDOWN = st.lists(
    st.sampled_from(
        [
            "word",
            "**bold**",
            "`code`",
            "🎉",
            "\n",
            "\n\n",
            "```\nx\n```\n",
            "- item\n",
            "# H\n",
            "[l](http://x)",
            "*",
            "_",
            "> q\n",
            "|a|b|\n|-|-|\n|1|2|\n",
            "\\",
            "<b>",
        ]
    ),
    max_size=60,
).map(" ".join)  # fmt: skip


@settings(max_examples=150, deadline=None)
@given(st.one_of(MARKDOWN, st.text(max_size=300)))
def test_whatever_is_rendered_telegram_takes(markdown: str) -> None:
    rendered = render(markdown)
    checked_text(rendered.text, rendered.entities or None)
    assert opening(rendered.text) != rendered.text


@pytest.mark.parametrize(
    "markdown", [FENCE, PARAGRAPHS, "word " * 3000, "🎉" * 5000, f"{PARAGRAPHS}\n\n{FENCE}"]
)
def test_long_answers_come_in_parts_that_are_whole(markdown: str) -> None:
    parts = split(markdown)
    assert 1 < len(parts) <= MOST_PARTS
    for part in parts:
        rendered = render(part)
        assert units(rendered.text) <= LIMIT
        checked_text(rendered.text, rendered.entities or None)
        assert open_fence(part) is None
        assert "**" not in rendered.text
    whole = re.sub(r"\s|```python|```", "", markdown)
    assert re.sub(r"\s|```python|```", "", "".join(parts)) == whole


def test_code_cut_in_two_stays_code_of_its_language() -> None:
    for part in split(FENCE):
        (entity,) = render(part).entities
        assert (entity["type"], entity["language"]) == ("pre", "python")


def test_a_very_long_answer_stays_whole_for_a_file() -> None:
    text = PARAGRAPHS * 4
    assert split(text) == [text]
    assert not render(text).fits
    checked_text(caption(render(text).text), None, limit=1024)


@settings(max_examples=25, deadline=None)
@given(st.lists(MARKDOWN, min_size=5, max_size=12).map("\n\n".join).map(lambda text: text * 6))
def test_no_part_is_too_long(markdown: str) -> None:
    parts = split(markdown)
    assert parts == [markdown] or all(render(part).fits for part in parts)


def test_an_answer_with_more_marks_than_a_message_may_have_comes_in_parts() -> None:
    words = [f"**word{number}**" for number in range(230)]
    parts = split(" and ".join(words))
    shown = [render(part) for part in parts]
    assert all(len(one.entities) <= 100 for one in shown)
    assert sum(len(one.entities) for one in shown) == 230, "none is forgotten"
    assert (
        "".join(" ".join(one.text for one in shown).split())
        == "".join(f"word{n}and" for n in range(230))[:-3]
    )
