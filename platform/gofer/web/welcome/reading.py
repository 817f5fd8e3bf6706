"""The pages of docs/, as the server that they are about shows them."""

from __future__ import annotations

import itertools
import re
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import gofer
from gofer.errors import NotFound
from gofer.web.pages.inert import words

_PAGE = re.compile(r"(?:[A-Za-z0-9-]+/){0,2}[A-Za-z0-9-]+\.md")
_FOLDERS = {"": "Using it", "integrations": "Integrations", "decisions": "Why it is so"}
_TABLE = '<div class="scroll" tabindex="0" role="region" aria-label="Table {}"><table>'


def folder() -> Path:
    """Where they are: in the installed package, or beside the source."""
    inside = Path(gofer.__file__).parent / "docs"
    return inside if inside.is_dir() else Path(gofer.__file__).parents[2] / "docs"


def names() -> list[str]:
    """Every page."""
    return sorted(path.relative_to(folder()).as_posix() for path in folder().rglob("*.md"))


@lru_cache(maxsize=1)
def contents() -> dict[str, list[dict[str, str]]]:
    """Every page's name and title, by folder."""
    groups: dict[str, list[dict[str, str]]] = {title: [] for title in _FOLDERS.values()}
    for name in names():
        text = (folder() / name).read_text(encoding="utf-8")
        groups[_FOLDERS[name.rpartition("/")[0]]].append({"name": name, "title": _title(name, text)})
    return groups


def _title(name: str, text: str) -> str:
    found = re.search(r"^# (.*)$", text, re.M)
    return found[1] if found else name


@dataclass(frozen=True, slots=True)
class Page:
    """One page, made from our own file by the same cleaning that everything passes."""

    title: str
    html: str

    def __html__(self) -> str:
        return self.html


@lru_cache(maxsize=64)
def page(name: str) -> Page:
    """A page by its name; raises NotFound."""
    path = folder() / name
    if not _PAGE.fullmatch(name) or not path.is_file():
        raise NotFound("There is no such page.")
    text = path.read_text(encoding="utf-8")
    return Page(_title(name, text), _with_places(str(words(text, breaks=False))))


def _with_places(html: str) -> str:
    """Headings that a link can lead to, and tables that the keyboard can scroll on a narrow screen."""
    number = itertools.count(1)
    html = re.sub("<table>", lambda _: _TABLE.format(next(number)), html).replace(
        "</table>", "</table></div>"
    )
    return re.sub(r"<h([23])>(.*?)</h\1>", _placed, html)


def _placed(heading: re.Match[str]) -> str:
    plain = re.sub(r"<[^>]*>", "", heading[2]).lower()
    place = re.sub(r"[^a-z0-9 -]", "", plain).replace(" ", "-")
    return f'<h{heading[1]} id="{place}">{heading[2]}</h{heading[1]}>'
