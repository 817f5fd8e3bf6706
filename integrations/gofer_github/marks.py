"""The hidden last line of everything we write: what it is about, and a MAC over that and where it stands.

Anybody can write such a line, and a model can be talked into writing one; it counts only as the last line, with a MAC
made for this very place. GitHub shows it to nobody, and everybody can read it: nothing in it is secret.
"""

from __future__ import annotations

import hmac
import re

from gofer.integration import ConnectionContext
from gofer_github.place import MARK, Place, Repository

NARROWED = "narrowed"
"""The word of what a run wrote that had read strangers' text."""
_LINE = re.compile(re.escape(MARK) + r" ([!-~]+(?: [!-~]+)*) mac=([0-9a-f]{32}) -->")


def line(account: ConnectionContext, place: Place, *words: str) -> str:
    """The line for a place; empty words are left out."""
    told = " ".join(filter(None, words))
    return f"{MARK} {told} mac={_mac(account, _names(place)[0], told)} -->"


def words(account: ConnectionContext, place: Place, body: str | None) -> tuple[str, ...]:
    """What the last line of a body says; nothing where it is not ours, or was made for another place."""
    found = _LINE.fullmatch((body or "").rstrip().rpartition("\n")[2])
    if found is None:
        return ()
    told, mac = found.groups()
    right = any(hmac.compare_digest(mac, _mac(account, name, told)) for name in _names(place))
    return tuple(told.split(" ")) if right else ()


def value(found: tuple[str, ...], name: str) -> str:
    """The value of `name=value` among the words; empty when there is none."""
    return next((word.partition("=")[2] for word in found if word.startswith(f"{name}=")), "")


def without(body: str | None) -> str:
    """The body without its last line, if that is such a line, ours or not."""
    text = (body or "").rstrip()
    before, _, last = text.rpartition("\n")
    return before.rstrip() if last.startswith(MARK) else text


def elsewhere(repository: str) -> Place:
    """The place of an issue that has no number yet."""
    return Place(Repository.known(repository), 0)


def _names(place: Place) -> list[str]:
    """How a place is called: by its repository's number where that is known, or as it was called when it was not."""
    by_name = f"{place.repository.lower()}#{place.number}"
    number = place.repository.number
    return [f"{number}#{place.number}", by_name] if number else [by_name]


def _mac(account: ConnectionContext, place: str, told: str) -> str:
    return account.mac("mark", place, told)[:32]
