"""Nothing a model writes is lost: what CommonMark would show with HTML off, and every link's target, arrives."""

from __future__ import annotations

import html
import re
from urllib.parse import unquote

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from markdown_it.token import Token

from gofer_standins.telegram.rules import checked_text
from gofer_telegram.markdown import clean, is_linkable
from gofer_telegram.text import Rendered, render, split

REFERENCE = MarkdownIt("commonmark", {"html": False})
REFERENCE.validateLink = lambda url: True  # type: ignore[method-assign]  # CommonMark knows no bad addresses


@pytest.mark.parametrize(
    ("markdown", "text"),
    [
        (
            "Use List<String> and run pip install <package>; a || b",
            "Use List<String> and run pip install <package>; a || b",
        ),
        ("a<br>b", "a<br>b"),
        ('see <a href="https://x.y/z">here</a>', 'see <a href="https://x.y/z">here</a>'),
        ("<div>\n**bold**\n</div>", "<div>\nbold\n</div>"),
        ("<!-- why -->", "<!-- why -->"),
        ("as said[^1]\n\n[^1]: In the book.", "as said[^1]\n\n[^1]: In the book."),
        ("as said[^1]\n\n[^1]: Smith2020", "as said^1 (Smith2020)"),
        ("- [ ] todo\n- [x] done", "☐ todo\n☑ done"),
        ("1. [ ] todo", "1. ☐ todo"),
        ("- [ ]\n[1]: https://x.y/z", "• [ ]\n[1]: https://x.y/z"),
        ("||not hidden|| and a || b || c", "||not hidden|| and a || b || c"),
        ("about ~5 and ~6~", "about ~5 and ~6~"),
        ("$a_1$ costs $5", "$a_1$ costs $5"),
        ("[here](docs/a.md)", "here (docs/a.md)"),
        ("[it](http://localhost:8000/)", "it (http://localhost:8000/)"),
        ("[](https://x.y)", "https://x.y"),
        ("![a picture](https://x.y/z.png)", "a picture"),
        ("| a |\n|---|\n| b | c |", "a |\n--+--\nb | c"),
        ("| [a](https://x.y) |\n|---|\n| b |", "a (https://x.y)\n---------------\nb"),
        ("As said.\n\n[1]: https://x.y/source", "As said.\n[1]: https://x.y/source"),
        ("a\x00b\x07c\rd", "abc\nd"),
    ],
)
def test_what_is_no_markdown_is_text(markdown: str, text: str) -> None:
    assert render(markdown).text == text


def shown_by_commonmark(tokens: list[Token]) -> str:
    words = ""
    for token in tokens:
        if token.children:
            words += shown_by_commonmark(token.children)
        elif token.type in ("text", "text_special", "code_inline", "code_block", "fence"):
            words += token.content
        words += " "
    return words


def targets(tokens: list[Token]) -> list[str]:
    found = []
    for token in tokens:
        found += targets(token.children or [])
        found += [str(token.attrs[name]) for name in ("href", "src") if token.attrs.get(name)]
    return found


def squeezed(text: str) -> str:
    """Without spaces, and without what marks tables, tasks and struck-out words, which CommonMark alone shows."""
    words = re.sub(r"[\s|—☐☑~-]", "", html.unescape(text))
    return re.sub(r"\[[xX]?\]", "", words)


def is_within(wanted: str, text: str) -> bool:
    """Whether the characters of one are in the other, in their order."""
    rest = iter(text)
    return all(character in rest for character in wanted)


PIECES = [
    "word", "Ünïcode", "🎉", "<package>", "List<String>", "<b>", "</b>", "<br/>", "<div>", "</div>", "<!-- c -->",
    '<a href="https://x.y/a">', "||", "~", "**", "*", "_", "`", "``", "\\", "&amp;", "&lt;b&gt;", "$x$",
    "[^1]", "[a](https://x.y/b)", "[b](c.md)", "[](https://x.y/d)", "![i](https://x.y/e.png)", "<https://x.y/f>",
    "[r][1]", "https://x.y/g", "[l](http://localhost/h)", "[![i](https://x.y/i.png)](https://x.y/j)", "!", "<", ">",
    "\n", "\n\n", "\n- ", "\n  - ", "\n1. ", "\n> ", "\n# ", "\n    ", "\n```\n", "\n<div>\n", "\n---\n",
    "\n- [ ] ", "\n1. [x] ", "\n[1]: https://x.y/k\n", "\n\n| a | b |\n|---|---|\n| c | d |\n\n", "\n[^1]: note\n",
]  # fmt: skip


@settings(max_examples=250, deadline=None)
@given(
    st.tuples(st.sampled_from(["", " "]), st.lists(st.sampled_from(PIECES), max_size=30)).map(
        lambda t: t[0].join(t[1])
    )
)
@example("<div>\n[a][1]\n</div>\n\n[1]: https://x.y/b")
@example("- <b>\n  [a](https://x.y)")
@example("- [ ] \nword\n==")
@example("> <div>\n> `<b>` [x](https://x.y/z)")
def test_all_that_commonmark_would_show_arrives(markdown: str) -> None:
    parts = [render(part) for part in split(markdown)]
    for part in parts:
        checked_text(part.text, part.entities or None)
    text = "".join(part.text for part in parts)
    tokens = REFERENCE.parse(clean(markdown))
    assert is_within(squeezed(shown_by_commonmark(tokens)), squeezed(text))
    arrived = [target for part in parts for target in links(part)]
    for target in targets(tokens):
        plain = html.unescape(unquote(target))
        assert plain.removeprefix("mailto:") in text or plain in arrived, target


def links(part: Rendered) -> list[str]:
    found = [str(one["url"]) for one in part.entities if one["type"] == "text_link"]
    assert all(is_linkable(url) for url in found), "Telegram drops what it makes no link of"
    return found


@settings(max_examples=250, deadline=None)
@given(st.text(max_size=200) | st.text("<>[]()!*_`~|#+=&\\ \nab:/.'\"012^", max_size=60))
@example("a<b>c")
def test_whatever_is_written_arrives(markdown: str) -> None:
    shown = squeezed(shown_by_commonmark(REFERENCE.parse(clean(markdown))))
    printable = "".join(c for c in shown if c.isprintable() and c != "\ufffd")
    assert is_within(printable, squeezed(render(markdown).text))
