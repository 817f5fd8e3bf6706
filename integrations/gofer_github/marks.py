"""The hidden last line of everything we write: words about it, and a MAC over the words and the place.

Anybody can write such a line, and a model can be made to write one. It counts only as the last line, with a MAC made
for this very place. GitHub does not display it, but anybody can read it: it holds no secrets.
"""

from __future__ import annotations

import hmac
import re

from gofer.integration import ConnectionContext
from gofer_github.place import MARK, Place, Repository

NARROWED = "narrowed"
"""The word for what a run wrote after it had read strangers' text."""
_LINE = re.compile(re.escape(MARK) + r" ([!-~]+(?: [!-~]+)*) mac=([0-9a-f]{32}) -->")


def line(account: ConnectionContext, place: Place, *words: str) -> str:
    """The hidden line for a place, without empty words."""
    content = " ".join(filter(None, words))
    return f"{MARK} {content} mac={_mac(account, _names(place)[0], content)} -->"


def words(account: ConnectionContext, place: Place, body: str | None) -> tuple[str, ...]:
    """The words of a body's last line; none when it is not ours or was made for another place."""
    found = _LINE.fullmatch((body or "").rstrip().rpartition("\n")[2])
    if found is None:
        return ()
    content, mac = found.groups()
    right = any(hmac.compare_digest(mac, _mac(account, name, content)) for name in _names(place))
    return tuple(content.split(" ")) if right else ()


def value(found: tuple[str, ...], name: str) -> str:
    """The value of `name=value` among the words; empty when there is none."""
    return next((word.partition("=")[2] for word in found if word.startswith(f"{name}=")), "")


def without(body: str | None) -> str:
    """The body without its hidden line, ours or not."""
    text = (body or "").rstrip()
    before, _, last = text.rpartition("\n")
    return before.rstrip() if last.startswith(MARK) else text


def elsewhere(repository: str) -> Place:
    """The place of an issue that has no number yet."""
    return Place(Repository.known(repository), 0)


def _names(place: Place) -> list[str]:
    """Names under which a MAC for this place may have been made: by the repository's id if known, and by its name."""
    by_name = f"{place.repository.lower()}#{place.number}"
    number = place.repository.number
    return [f"{number}#{place.number}", by_name] if number else [by_name]


def _mac(account: ConnectionContext, place: str, content: str) -> str:
    return account.mac("mark", place, content)[:32]
