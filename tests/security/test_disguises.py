"""Threat: a secret gets out in an encoding that nobody looks for.

What is masked in text (logs, prompts, replies) and in what an upstream answers to a shell comes from one generator.
"""

from __future__ import annotations

import base64
from collections.abc import Callable

import pytest

from gofer.vault.redaction import Redactor, Secret
from gofer_sandbox.encodings import MAX_SPELLED_OUT, encodings
from gofer_sandbox.network.credential import Credential, Mask

SECRET = "ghs_Q7z/Lk+9xW2m=Vb4"
DATA = SECRET.encode()


def twice(first: Callable[[bytes], bytes], second: Callable[[bytes], bytes], before: bytes = b"") -> str:
    return second(b"{" + first(before + DATA + b"}")).decode()


DISGUISES = {
    "plain": SECRET,
    "base64": base64.b64encode(DATA).decode(),
    "base32": base64.b32encode(DATA).decode(),
    "base32 in lower case": base64.b32encode(DATA).decode().lower(),
    **{f"base32 after {n} bytes": base64.b32encode(b"abcd"[:n] + DATA + b"tail").decode() for n in range(5)},
    "reversed": SECRET[::-1],
    "percent for every byte": "".join(f"%{byte:02X}" for byte in DATA),
    "percent in lower case": "".join(f"%{byte:02x}" for byte in DATA),
    "HTML numbers": "".join(f"&#{byte};" for byte in DATA),
    "HTML hex numbers": "".join(f"&#x{byte:x};" for byte in DATA),
    "unicode escapes": "".join(f"\\u{byte:04x}" for byte in DATA),
    "byte escapes": "".join(f"\\x{byte:02x}" for byte in DATA),
    "hex with colons": DATA.hex(":"),
    "hex with spaces": DATA.hex(" ").upper(),
    "hex with dashes": DATA.hex("-"),
    "hex with dots": DATA.hex("."),
    "hex in groups of two bytes": DATA.hex(" ", 2),
    "octal escapes": "".join(f"\\{byte:03o}" for byte in DATA),
    "hex as C writes it": ", ".join(f"0x{byte:02x}" for byte in DATA),
    "hex on lines of its own": DATA.hex("\n"),
    "base64 twice": base64.b64encode(base64.b64encode(DATA)).decode(),
    **{f"base64 twice after {n}": twice(base64.b64encode, base64.b64encode, b"abc"[:n]) for n in range(3)},
    "base64 for addresses, twice": twice(base64.urlsafe_b64encode, base64.urlsafe_b64encode),
}
LONGEST_LEFT = 12


def left_of(shown: str, disguise: str) -> bool:
    """Whether a run of the disguise that says something is still to be read."""
    core = disguise[8:-8]
    pieces = (core[at : at + LONGEST_LEFT] for at in range(max(1, len(core) - LONGEST_LEFT)))
    return any(piece in shown for piece in pieces)


@pytest.mark.parametrize("name", DISGUISES)
def test_no_disguise_gets_into_a_log_a_prompt_or_a_reply(name: str) -> None:
    disguise = DISGUISES[name]
    redactor = Redactor({"TOKEN": Secret(SECRET)})
    for text in (f"see {disguise} there", "words " * 2000 + disguise):
        shown = redactor.redact(text)
        assert "[secret:TOKEN]" in shown
        assert not left_of(shown, disguise)
    stream = redactor.stream()
    shown = "".join(stream.feed(letter) for letter in f"see {disguise} there") + stream.flush()
    assert not left_of(shown, disguise)


@pytest.mark.parametrize("name", [name for name in DISGUISES if "lines" not in name])
def test_no_disguise_comes_back_into_a_shell(name: str) -> None:
    disguise = DISGUISES[name]
    mask = Mask(Credential.bearer(SECRET).secrets)
    whole = f"see {disguise} there".encode()
    shown = b"".join(mask.feed(whole[at : at + 1]) for at in range(len(whole))) + mask.rest()
    assert b"*" * 8 in shown
    assert len(shown) == len(whole)
    assert not left_of(shown.decode(), disguise)


def test_what_is_looked_for_is_bounded() -> None:
    """The cost of masking grows with the number and the length of the forms."""
    forms = encodings(SECRET)
    assert len(forms) < 120
    assert max(map(len, forms)) <= 6 * len(SECRET) + 6
    long = encodings("k" * (MAX_SPELLED_OUT + 1))
    assert sum(map(len, long)) < 30 * MAX_SPELLED_OUT


def test_many_secrets_are_found_in_one_pass() -> None:
    """Beyond some number of forms a text is read once for all of them, with the same outcome."""
    secrets = {f"KEY_{n}": Secret(f"{n:03d}-{'pqrstuvw'[n % 8] * 9}-{n * 7919:x}") for n in range(80)}
    redactor = Redactor(secrets)
    text = "words " * 2000 + secrets["KEY_41"].reveal() + " and " + secrets["KEY_7"].reveal()[::-1]
    assert redactor.redact(text).endswith("words [secret:KEY_41] and [secret:KEY_7]")
