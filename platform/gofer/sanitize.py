"""Text of people we do not know, made harmless: what comes in is cleaned, what goes out in their wake cannot act.

A service acts on what it is sent: it tells people who are mentioned, fetches pictures and closes issues; and bots obey
lines that look like commands, in code too. What would act is broken by a space of no width, and is then a text that
looks the same.
"""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Collection, Iterator
from itertools import pairwise

BREAK = "\u200b"
"""A space of no width: a person sees no difference, and neither a service nor a bot finds what it looks for."""
MAX_NAME = 80
MAX_GIST = 160

# These are applied to what anybody wrote: none may look at a character again and again.
_TO_COMPOSE = re.compile(r"[\x00-\x7f]?[^\x00-\x7f]{1,64}")
# Characters that hide or reorder text: bidi controls, joiners, tags, fillers, variation selectors.
_HIDDEN = re.compile(
    "[\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b-\u180f\u200b-\u200f\u202a-\u202e\u2060-\u206f\u3164"
    "\ufeff\uffa0\ufff9-\ufffb\U0001d173-\U0001d17a\U000e0000-\U000e0fff]"
)
_CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f]")
_ANSI = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-_])")
_MARKUP = re.compile(r"[\[\]<>`*|~\\]")

_LINE_ENDS = re.compile("\r\n|[\r\u2028\u2029]")
_BOTS = (
    "bors|homu|rustbot|mergify|mergifyio|dependabot|renovate|renovatebot|jenkins|kodiak|kodiakhq|azp|trunk|coderabbitai|"
    "copilot|claude|codex|netlify|vercel|allcontributors|github-actions|k8s-ci-robot"
)
# An underscore before it may begin emphasis, behind which a name is a mention.
_MENTION = re.compile(rf"(?<![A-Za-z0-9])@(?=([A-Za-z0-9_-]{{1,60}}))|@(?=({_BOTS})\b)", re.I)
_MENTION_IN_CODE = re.compile(
    rf"(?<![A-Za-z0-9])@(?=([A-Za-z0-9_-]{{1,60}}+)[^\S\n]++\w)|@(?=({_BOTS})\b)", re.I
)
_LINE = r"^((?:[^\S\n]|[>*+.)\d\ufeff\u200b\u2060-])*+)"
"""The beginning of a line, also in a list or a quote."""
_SLASH = re.compile(_LINE + r"(\\?/)(?=[A-Za-z][\w-]*+(?:[^/\w.-]|\.(?!\w)|$))", re.M)
_BOT = re.compile(
    _LINE
    + rf"(?=(?:{_BOTS}|recheck|retest|reverify|r\+|r=|delegate[+=]|ok to test|test this|add to (?:allow|white)list)"
    r"(?:\W|$))(\S)",
    re.M | re.I,
)
_CLOSING = re.compile(
    r"(?<![A-Za-z0-9])(?:close[sd]?|fix(?:e[sd])?|resolve[sd]?|implement(?:s|ed)?|duplicate\s{1,4}of)"
    r"[\s:*_~`\[(<]{1,12}"
    r"(?=#\d|GH-\d|https?://|[\w.-]{1,100}/[\w.-]{1,100}[#!]\d|[\w.-]{1,100}#\d)",
    re.I,
)
_ISSUE = re.compile(r"[\w./-]{0,201}(?:#|GH-)\d{1,12}(?!\d)", re.I)
_ELSEWHERE = re.compile(r"(?<![\w./-])([\w.-]{1,100}+/[\w.-]{1,100}+)([#!])(?=\d)")
_IMAGE = re.compile(r"!(?=\[)")
_IMAGE_ENDS = re.compile(r"\]\s{0,3}[(\[]")
_DEFINITION = "]:"
_MAX_IMAGE = 100_000
"""More than any service takes in one text."""
_ENTITY = re.compile(
    r"&(?=#|(?!(?:amp|lt|gt|quot|apos|nbsp|[mn]dash|hellip|[lr]arr|times);)[A-Za-z][A-Za-z0-9]{1,31};)"
)
"""A character by its number or name, which a service reads before it looks for mentions and closing words."""
_HTML = re.compile(r"<(?=[A-Za-z/!?](?!\w{0,8}://)(?!\w{0,8}:[^/]))")
_HARMLESS = re.compile(
    r"/?(?:details|summary|sub|sup|br|hr|kbd|b|i|em|strong|code|pre|p|ul|ol|li|blockquote|h[1-6]|del|ins)\s{0,4}/?>",
    re.I,
)
_HTML_LINE = re.compile(r"(?:[^\S\n]|[>*+.)\d-])*+<")
_SCHEME = re.compile(r"(?:javascript|vbscript|data|file|tg|intent)(?=\s{0,4}(?::|&colon|&#))", re.I)
_LINK = re.compile(r"\](?=\(\s{0,4}<?(?!https?://|mailto:)[^)\s/#?]{0,200}[:&])", re.I)
_MARKS = re.compile(
    r"`(?P<code>[^`\n]{1,1000})`|\*\*(?P<strong>[^*\n]{1,1000})\*\*|^#{1,6} "
    r"|\[(?P<link>[^\]\n]{1,1000})\]\((?P<address>https?://[^)\s]{1,2000})\)",
    re.M,
)
"""What a reader of Markdown takes away: marks of code, stress and headings, and the form of a link."""
_FENCE = re.compile(r"(`{3,}|~{3,})([^\n]*)")
_LONG_FENCE = re.compile("`{101}|~{101}")
"""Longer than who cuts a text into parts closes and opens again."""


def clean(text: str) -> str:
    """The text without escape sequences, control, invisible and reordering characters or lone surrogates."""
    if text.isascii() and text.replace("\n", "").isprintable():
        return text  # nearly every text, and asked of every message of a prompt
    text = text.encode("utf-8", "replace").decode("utf-8")
    text = _ANSI.sub("", text).replace("\r\n", "\n").replace("\r", "\n")
    return composed(_HIDDEN.sub("", _CONTROL.sub("", text)))


def composed(text: str) -> str:
    """The text with letters and their marks as one character, in pieces: many marks in a row take the square of
    their number to put in order, and nobody writes so many."""
    if text.isascii():
        return text
    return _TO_COMPOSE.sub(lambda piece: unicodedata.normalize("NFC", piece[0]), text)


def display_name(text: str, limit: int = MAX_NAME) -> str:
    """A name that somebody gave themselves, or a place: one short line without markup. Empty where nothing is left."""
    return " ".join(_MARKUP.sub(" ", clean(text[: limit * 20])).split())[:limit].strip()


def gist(text: str, limit: int = MAX_GIST) -> str:
    """What a text is about, by rule: its beginning on one line, without marks that could end a line of ours."""
    line = " ".join(_MARKUP.sub(" ", clean(text[: limit * 20])).replace('"', "'").split())
    return line if len(line) <= limit else line[: limit - 1].rstrip() + "…"


def plain_text(text: str) -> str:
    """Markdown as it reads without its marks, for a place that does not render it. Code stays as it is."""
    pieces = [
        "\n".join(piece.strip("\n").split("\n")[1:-1]) + "\n" if is_code else _MARKS.sub(_unmarked, piece)
        for is_code, piece in _pieces(text or "")
    ]
    return "".join(pieces).strip("\n")


def _unmarked(found: re.Match[str]) -> str:
    if found["address"]:
        return f"{found['link']} ({found['address']})"
    return found["code"] or found["strong"] or ""


def defuse(text: str, *, here: str = "", people: Collection[str] = ()) -> str:
    """A text that does nothing where it is sent: it mentions nobody but `people`, commands no bot, closes no issue but
    the one that `here` names (`owner/name#1`), and has neither pictures from elsewhere nor links that run something.
    """
    known = {name.lower().lstrip("@") for name in people}

    def mention(found: re.Match[str]) -> str:
        return "@" if (found[1] or "").lower() in known else "@" + BREAK

    text = _CONTROL.sub("", _LINE_ENDS.sub("\n", text))
    defined = _DEFINITION in text
    pieces = []
    for is_code, piece in _pieces(text):
        if not is_code:
            piece = _references(_links(piece, defined), here)
        piece = _BOT.sub(r"\1\2" + BREAK, _SLASH.sub(r"\1\2" + BREAK, piece))
        pieces.append((_MENTION_IN_CODE if is_code else _MENTION).sub(mention, piece))
    return "".join(pieces)


def _pieces(text: str) -> Iterator[tuple[bool, str]]:
    """The text and its blocks of code, in which only bots look for anything. Only what every reader of Markdown takes
    for code counts: a fence at the very beginning of a line, closed again, in a text without blocks of HTML or fences
    without end."""
    lines = text.split("\n")
    fences = list(_fences(lines))
    code = {number for first, last in fences for number in range(first, last + 1)}
    html = any(number not in code and _HTML_LINE.match(line) for number, line in enumerate(lines))
    if html or _LONG_FENCE.search(text):
        fences = []
    at = 0
    for first, last in fences:
        if first > at:
            yield False, "\n".join(lines[at:first]) + "\n"
        yield True, "\n".join(lines[first : last + 1]) + ("\n" if last + 1 < len(lines) else "")
        at = last + 1
    if at < len(lines):
        yield False, "\n".join(lines[at:])


def _fences(lines: list[str]) -> Iterator[tuple[int, int]]:
    """First and last line of each block of code."""
    opened, marker = -1, ""
    for number, line in enumerate(lines):
        found = _FENCE.match(
            line.lstrip(" ") if opened >= 0 and len(line) - len(line.lstrip(" ")) < 4 else line
        )
        if found is None:
            continue
        if opened < 0:
            if not (found[1][0] == "`" and "`" in found[2]):
                opened, marker = number, found[1]
        elif found[1].startswith(marker) and not found[2].strip():
            yield opened, number
            opened = -1


def _links(text: str, defined: bool) -> str:
    """HTML, pictures, and links that lead to no page."""
    text = _HTML.sub(
        lambda found: "<" if _HARMLESS.match(text, found.end()) else "<" + BREAK,
        text,
    )
    text = _SCHEME.sub(lambda found: found[0] + BREAK, _images(text, defined))
    return _ENTITY.sub("&" + BREAK, _LINK.sub("]" + BREAK, text))


def _images(text: str, defined: bool) -> str:
    """Pictures in Markdown, whose address stands behind them or, `defined`, elsewhere. `vec![1]` is none."""
    if defined:
        return _IMAGE.sub("!" + BREAK, text)
    ends = [found.start() for found in _IMAGE_ENDS.finditer(text)]
    breaks, at = [], 0
    for found in _IMAGE.finditer(text):
        while at < len(ends) and ends[at] < found.start():
            at += 1
        if at < len(ends) and ends[at] - found.start() < _MAX_IMAGE:
            breaks += [found.end(), ends[at] + 1]  # nor is it a link
    cuts = [0, *sorted(set(breaks)), len(text)]
    return BREAK.join(text[start:end] for start, end in pairwise(cuts))


def _references(text: str, here: str) -> str:
    """Words that close an issue, and references into other repositories, which leave a trace there."""
    place, _, number = here.lower().partition("#")
    own = {f"#{number}", f"gh-{number}", f"{place}#{number}"} if number else set()

    def closing(found: re.Match[str]) -> str:
        named = _ISSUE.match(text, found.end())
        is_own = named is not None and named[0].lower() in own
        return found[0] if is_own else found[0][0] + BREAK + found[0][1:]

    def elsewhere(found: re.Match[str]) -> str:
        return found[0] if found[1].lower() == place else found[0] + BREAK

    return _ELSEWHERE.sub(elsewhere, _CLOSING.sub(closing, text))
