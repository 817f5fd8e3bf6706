"""Markdown on Telegram: entities that fit, parts that break nothing."""

from __future__ import annotations

import itertools
import re
import textwrap
import time
from collections.abc import Callable
from random import Random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from gofer_standins.telegram.rules import checked_text
from gofer_telegram.markdown import units
from gofer_telegram.text import LIMIT, MAX_PARTS, Rendered, caption, opening, render, split

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


@settings(max_examples=200, deadline=None)
@given(st.text(max_size=500) | st.lists(st.text("ab é", max_size=9), max_size=90).map(" ".join))
@example("Yes")
@example("Yes.")
@example("No, never")
@example("これは長い答えですが空白はひとつもありませんので半分だけが見えます")
def test_an_opening_holds_at_most_half_of_the_words_and_is_never_the_answer(markdown: str) -> None:
    whole = render(markdown).text
    shown = opening(whole)
    assert shown.endswith(" …")
    own = shown.removesuffix(" …")
    assert own == "One moment" or whole.startswith(own)
    if own != "One moment":
        assert len(own.split()) <= max(len(whole.split()) // 2, 1)
        assert len(own) <= len(whole) / 2


@pytest.mark.parametrize(
    "markdown", [FENCE, PARAGRAPHS, "word " * 3000, "🎉" * 5000, f"{PARAGRAPHS}\n\n{FENCE}"]
)
def test_long_answers_come_in_parts_that_are_whole(markdown: str) -> None:
    parts = split(markdown)
    assert 1 < len(parts) <= MAX_PARTS
    for part in parts:
        rendered = render(part)
        assert units(rendered.text) <= LIMIT
        checked_text(rendered.text, rendered.entities or None)
        assert "```" not in rendered.text
        assert "**" not in rendered.text
    whole = re.sub(r"\s|```python|```", "", markdown)
    assert re.sub(r"\s|```python|```", "", "".join(parts)) == whole


def test_code_cut_in_two_stays_code_of_its_language() -> None:
    for part in split(FENCE):
        (entity,) = render(part).entities
        assert (entity["type"], entity["language"]) == ("pre", "python")


def test_a_very_long_answer_stays_whole_for_a_file() -> None:
    text = PARAGRAPHS * 8
    assert split(text) == [text]
    assert not render(text).fits
    for whole in (render(text).text, "🎉" * 9000, "a" + "👩‍🚀" * 9000, "🎉 " * 9000):
        checked_text(caption(whole), None, limit=1024)


@pytest.mark.parametrize(
    "text",
    [
        f"|{'a|' * 127}\n|{'-|' * 127}\n" + "a\n" * 10_000,
        "- " * 20 + "a\n" * 5_000,
        "# a\n" * 5_500,
        "![" * 3_000 + "](b)" * 3_000,
    ],
    ids=["table", "list", "headings", "images"],
)
def test_text_made_to_be_slow_takes_no_more_than_some_times_as_long(text: str) -> None:
    usual = seconds_of(lambda: render(PARAGRAPHS))
    assert seconds_of(lambda: split(text)) + seconds_of(lambda: render(text)) < 40 * usual


DENSE = (
    "## Heading\n\nSome **bold** text with `code` and [a link](https://example.org/a) and List<String>.\n\n"
    "- [ ] one\n- two *it*\n\n| a | b |\n|---|---|\n| 1 | 2 |\n\n```python\nx = 1\n```\n\n"
) * 100


def test_dense_text_is_split_in_the_time_of_a_few_renderings() -> None:
    text = DENSE[:16_000]
    assert len(split(text)) > 4
    assert seconds_of(lambda: split(text)) < 5 * seconds_of(lambda: render(text))


def seconds_of(work: Callable[[], object]) -> float:
    """Of processor time, at best: other programs on the machine slow it down."""

    def once() -> float:
        begun = time.process_time()
        work()
        return time.process_time() - begun

    return min(once() for _ in range(3))


@settings(max_examples=15, deadline=None)
@given(st.lists(MARKDOWN, min_size=5, max_size=12).map("\n\n".join).map(lambda text: text * 6))
def test_no_part_is_too_long(markdown: str) -> None:
    parts = split(markdown)
    assert parts == [markdown] or all(render(part).fits for part in parts)


class Writer:
    """Writes Markdown in which each word tells where it stands: w plain, c in code, t in a table, h in its head."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._words = itertools.count()

    def document(self) -> str:
        wanted, written = self._random.randint(4_000, 14_000), ""
        while len(written) < wanted:
            written += self.block(0) + "\n\n"
        return written

    def block(self, depth: int) -> str:
        kinds = [self.paragraph, self.fence, self.table, *([self.items, self.quote] if depth < 3 else [])]
        return self._random.choice(kinds)(depth)

    def words(self, kind: str, most: int) -> list[str]:
        return [f"{kind}{next(self._words)}" for _ in range(self._random.randint(1, most))]

    def paragraph(self, depth: int) -> str:
        marks = ["{}"] * 6 + ["**{}**", "_{}_", "🎉 {}", "[{}](https://x.y/z)", "{}.", "{}\n", "~~{}~~"]
        return " ".join(self._random.choice(marks).format(word) for word in self.words("w", 150)).replace(
            "\n ", "\n"
        )

    def fence(self, depth: int) -> str:
        mark = self._random.choice(["```", "~~~", "````"])
        between = self._random.choice(["\n", " = ", "\n    ", "\n\n"])
        return f"{mark}py\n{between.join(self.words('c', 200))}\n{mark}"

    def table(self, depth: int) -> str:
        rows = [f"| {word} | {word} |" for word in self.words("t", 60)]
        return "\n".join([f"| h{depth} | head |", "|---|---|", *rows])

    def items(self, depth: int) -> str:
        marker = self._random.choice(["- ", "* ", "1. ", "10) "])
        blocks = [self.block(depth + 1) for _ in range(self._random.randint(1, 3))]
        return "\n\n".join(marker + textwrap.indent(block, " " * len(marker)).lstrip(" ") for block in blocks)

    def quote(self, depth: int) -> str:
        return textwrap.indent(self.block(depth + 1), "> ", lambda line: True)


DOCUMENTS = st.integers(0, 2**32).map(lambda seed: Writer(Random(seed)).document())


@settings(max_examples=25, deadline=None)
@given(DOCUMENTS)
def test_wherever_it_is_cut_each_word_stays_what_it_was(markdown: str) -> None:
    parts = split(markdown)
    if len(parts) == 1:
        assert parts == [markdown]
    shown = [render(part) for part in parts]
    for one in shown if len(parts) > 1 else ():
        assert one.fits
        checked_text(one.text, one.entities or None)
        assert not re.search("```|~~~|[|]--|[*][*]|~~", one.text), "no mark is loose"
        outside = without_code(one)
        assert not re.search(r"\b[ct]\d", outside)
        assert not re.search(r"\bw\d", one.text) or re.search(r"\bw\d", outside)
    words = re.compile(r"[wct]\d+")
    together = "\n".join(one.text for one in shown)
    assert words.findall(together) == words.findall(re.sub(r"\(https[^)]*\)", "", markdown))


def without_code(rendered: Rendered) -> str:
    text = rendered.text.encode("utf-16-le")
    for entity in reversed([one for one in rendered.entities if one["type"] == "pre"]):
        text = text[: 2 * entity["offset"]] + text[2 * (entity["offset"] + entity["length"]) :]
    return text.decode("utf-16-le")


CODE = "\n".join(f"    x{number} = {number}  # code" for number in range(250))
ROWS = "\n".join(f"| row {number} | {number * number} |" for number in range(300))


def test_code_two_lists_deep_goes_on_as_code_of_its_language() -> None:
    markdown = f"- a\n  - b\n\n    ```py\n{CODE}\n    ```\n\n    Then.\n  - c\n\n    More.\n- d\n"
    first, *_, last = parts = [render(part) for part in split(markdown)]
    assert len(parts) > 1
    assert first.text.startswith("• a\n  • b\nx0 = 0")
    assert last.text.endswith("\nThen.\n• c\nMore.\n• d")
    assert [entity["language"] for part in parts for entity in part.entities] == ["py"] * len(parts)


def test_a_long_table_has_its_head_in_every_part() -> None:
    parts = [render(part) for part in split(f"| name | square |\n|---|---|\n{ROWS}")]
    assert len(parts) > 1
    for part in parts:
        assert part.text.startswith("name")
        assert [entity["type"] for entity in part.entities] == ["pre"]
        assert "|-" not in part.text
    assert sum(part.text.count("row") for part in parts) == 300


@pytest.mark.parametrize("count", [230, 1100])
def test_an_answer_with_more_marks_than_a_message_may_have_comes_in_parts(count: int) -> None:
    words = [f"**word{number}**" for number in range(count)]
    parts = split(" and ".join(words))
    shown = [render(part) for part in parts]
    assert all(len(one.entities) <= 100 for one in shown)
    assert sum(len(one.entities) for one in shown) == count, "none is forgotten"
    assert (
        "".join(" ".join(one.text for one in shown).split())
        == "".join(f"word{n}and" for n in range(count))[:-3]
    )


@pytest.mark.parametrize("margin", ["", "- "])
def test_code_without_a_fence_stays_code_behind_a_cut(margin: str) -> None:
    code = textwrap.indent("\n".join(f"x{number} = {number}" for number in range(90)), "    ")
    markdown = margin + textwrap.indent(f"{'word ' * 640}\n\n{code}\n", " " * len(margin)).lstrip(" ")
    first, last = (render(part) for part in split(markdown))
    assert "x0" not in first.text
    assert (without_code(last), last.text[:6]) == ("", "x0 = 0")


def test_what_has_more_entities_than_its_parts_may_have_becomes_a_file() -> None:
    """A message would forget all but a hundred, and with them where links lead."""
    markdown = "\n".join(f"> [w{number}](https://x.y/{number}) **b**" for number in range(590))
    (part,) = split(markdown)
    assert not render(part).fits
