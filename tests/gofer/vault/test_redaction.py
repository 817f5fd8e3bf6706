"""No known secret survives, in whatever form, wherever the text is cut."""

from __future__ import annotations

import base64
import io
import itertools
import json
import random
import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import quote, quote_plus

import pytest
import structlog
from hypothesis import given, settings
from hypothesis import strategies as st

from gofer.vault.redaction import Redactor, Secret

TOKEN = 'q7:Zr/2+Lk"9é=&x'
PEM_BODY = base64.b64encode(random.Random(5).randbytes(600)).decode()
PEM = (
    "-----BEGIN RSA PRIVATE KEY-----\n"
    + "\n".join(PEM_BODY[start : start + 64] for start in range(0, len(PEM_BODY), 64))
    + "\n-----END RSA PRIVATE KEY-----\n"
)


def b64(data: str) -> str:
    return base64.b64encode(data.encode("utf-8", "surrogatepass")).decode()


def shifted_core(encoder: Callable[[bytes], bytes], shift: int) -> Callable[[str], str]:
    return lambda text: encoder(b"abc"[:shift] + text.encode("utf-8", "surrogatepass") + b"tail").decode()


def lower_percent(text: str) -> str:
    return re.sub("%..", lambda match: match[0].lower(), quote(text, safe="", errors="surrogatepass"))


ENCODINGS: dict[str, Callable[[str], str]] = {
    "plain": lambda text: text,
    "base64": b64,
    **{f"base64+{n}": shifted_core(base64.b64encode, n) for n in (1, 2)},
    **{f"urlsafe+{n}": shifted_core(base64.urlsafe_b64encode, n) for n in range(3)},
    "url": lambda text: quote(text, safe="", errors="surrogatepass"),
    "url lower": lower_percent,
    "form": lambda text: quote_plus(text, errors="surrogatepass"),
    "json": lambda text: json.dumps(text),
    "json unicode": lambda text: json.dumps(text, ensure_ascii=False),
    "json in json": lambda text: json.dumps(json.dumps({"t": text})),
    "hex": lambda text: text.encode("utf-8", "surrogatepass").hex(),
    "hex upper": lambda text: text.encode("utf-8", "surrogatepass").hex().upper(),
    "repr": repr,
    "wrapped base64": lambda text: base64.encodebytes(text.encode("utf-8", "surrogatepass")).decode(),
}

secrets = st.text(
    st.characters(exclude_categories=["Cc", "Zl", "Zp"]) | st.sampled_from('"\\/+&=% é'),
    min_size=8,
    max_size=90,
).filter(lambda text: len(text.strip()) >= 8)
surroundings = st.text(st.sampled_from("ab {}:\n\"',"), max_size=12)
encodings = st.sampled_from(sorted(ENCODINGS))


unhurried = settings(deadline=None, max_examples=100)


def redactor(**values: str) -> Redactor:
    return Redactor({name: Secret(value) for name, value in values.items()})


def streamed(redactor: Redactor, text: str, cuts: list[int]) -> str:
    stream = redactor.stream()
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    pieces = [stream.feed(text[start:end]) for start, end in itertools.pairwise(bounds)]
    return "".join(pieces) + stream.flush()


def leaks(shown: str, encoded: str) -> bool:
    """Whether a run of the encoded secret as long as a short secret is still there."""
    core = encoded[4:-8] if len(encoded) > 24 else encoded[3:-6]
    return any(core[start : start + 12] in shown for start in range(max(1, len(core) - 11)))


@pytest.mark.parametrize("encoding", sorted(ENCODINGS))
def test_each_form_is_masked(encoding: str) -> None:
    encoded = ENCODINGS[encoding](TOKEN)
    shown = redactor(GITHUB=TOKEN).redact(f"before {encoded} after")
    assert "[secret:GITHUB]" in shown
    assert shown.startswith("before ")
    assert shown.endswith(" after")
    assert not leaks(shown, encoded)


@unhurried
@given(secrets, encodings, surroundings, surroundings, st.lists(st.integers(0, 500), max_size=4))
def test_a_secret_never_survives_and_cuts_change_nothing(
    secret: str, encoding: str, before: str, after: str, cuts: list[int]
) -> None:
    encoded = ENCODINGS[encoding](secret)
    masks = redactor(NAME=secret)
    text = before + encoded + after
    whole = masks.redact(text)
    assert "[secret:NAME]" in whole
    assert streamed(masks, text, cuts) == whole
    if encoded not in before + "[secret:NAME]" + after:
        assert encoded not in whole


@unhurried
@given(secrets, st.integers(0, 500))
def test_every_single_cut_of_a_plain_secret(secret: str, cut: int) -> None:
    assert streamed(redactor(NAME=secret), secret, [cut]) == "[secret:NAME]"


@unhurried
@given(st.text(st.sampled_from("ab\n"), max_size=60), st.lists(st.integers(0, 60), max_size=5))
def test_overlaps_and_repeats_read_the_same_whole_or_in_chunks(text: str, cuts: list[int]) -> None:
    masks = redactor(A="abababab", B="aaaaaaaab", C="bbbbbbbbbb", D="abababababab")
    whole = masks.redact(text)
    assert streamed(masks, text, cuts) == whole
    for value in ("abababab", "aaaaaaaab", "bbbbbbbbbb"):
        assert value not in whole.replace("\n", "")


def test_overlapping_secrets_leave_no_rest() -> None:
    masks = redactor(LEFT="abcdefghij", RIGHT="ghijklmnopqr")
    assert masks.redact("<abcdefghijklmnopqr>") == "<[secret:RIGHT]>"
    assert masks.redact("abcdefghij ghijklmnopqr") == "[secret:LEFT] [secret:RIGHT]"


def test_the_longest_of_prefixes_is_named() -> None:
    masks = redactor(SHORT="password", LONG="password-and-more")
    assert masks.redact("password-and-more, password-and") == "[secret:LONG], [secret:SHORT]-and"


def test_neighbours_keep_their_own_names() -> None:
    assert redactor(A="aaaabbbb", B="ccccdddd").redact("aaaabbbbccccdddd") == "[secret:A][secret:B]"


def test_short_secrets_are_left_alone() -> None:
    assert redactor(PIN="1234567").redact("1234567 MTIzNDU2Nw==") == "1234567 MTIzNDU2Nw=="


def test_composed_and_decomposed_letters_are_one_secret() -> None:
    masks = redactor(NAME="pässwörter")
    assert masks.redact("pa\u0308sswo\u0308rter") == "[secret:NAME]"


def test_a_key_file_is_masked_whole_wrapped_and_line_by_line() -> None:
    masks = redactor(APP_KEY=PEM)
    line = PEM.splitlines()[3]
    assert masks.redact(f"x{PEM}y") == "x[secret:APP_KEY]\ny"
    assert masks.redact(PEM.replace("\n", "\r\n")).strip() == "[secret:APP_KEY]"
    assert masks.redact(f"line 4: {line}") == "line 4: [secret:APP_KEY]"
    assert masks.redact(json.dumps({"key": PEM})) == '{"key": "[secret:APP_KEY]"}'
    wrapped = base64.encodebytes(PEM.encode()).decode()
    shown = masks.redact(f"$ base64 key\n{wrapped}$ ")
    assert shown.startswith("$ base64 key\n[secret:APP_KEY]")
    assert len(shown) < 50
    dump = "\n".join(PEM.encode().hex()[start : start + 60] for start in range(0, len(PEM) * 2, 60))
    assert masks.redact(dump) == "[secret:APP_KEY]"
    for size in (1, 7, 64, 300):
        stream = masks.stream()
        pieces = [stream.feed(wrapped[start : start + size]) for start in range(0, len(wrapped), size)]
        assert "".join(pieces) + stream.flush() == masks.redact(wrapped)


SHAPES = {
    "anthropic": "sk-ant-api03-" + "Ab3_-" * 18,
    "openai": "sk-proj-" + "aB3d" * 12,
    "github classic": "ghp_" + "a1B2" * 9,
    "github app": "ghs_123456_eyJhbGciOi.eyJpc3MiOiIxMjM0.c2lnbmF0dXJl-_x",
    "github fine": "github_pat_11ABCDEFG0" + "x9" * 30,
    "telegram": "123456789:AAE" + "x-_9" * 8,
    "aws": "AKIA" + "Q7ZX" * 4,
    "private key": PEM.strip(),
    "encrypted key": PEM.strip().replace("RSA", "ENCRYPTED"),
    "plain key": PEM.strip().replace("RSA ", ""),
}


@pytest.mark.parametrize("name", sorted(SHAPES))
@pytest.mark.parametrize("size", [1, 5, 1000])
def test_tokens_are_known_by_their_shape(name: str, size: int) -> None:
    masks = Redactor()
    text = f"see\n{SHAPES[name]}\n\nthen {SHAPES[name]}, end"
    expected = "see\n[redacted]\n\nthen [redacted], end"
    assert masks.redact(text) == expected
    stream = masks.stream()
    pieces = [stream.feed(text[start : start + size]) for start in range(0, len(text), size)]
    assert "".join(pieces) + stream.flush() == expected
    escaped = json.dumps(text)
    assert masks.redact(escaped) == json.dumps(expected)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("Authorization: Bearer abc.def-123456", "Authorization: Bearer [redacted]"),
        ("authorization: basic dXNlcjpwYXNz", "authorization: basic [redacted]"),
        ('{"Authorization": "token 0123456789abcdef"}', '{"Authorization": "token [redacted]"}'),
        (r"{\"Authorization\": \"Bearer 0123456789abcdef\"}", r"{\"Authorization\": \"Bearer [redacted]\"}"),
        ("X-Api-Key: 0123456789abcdef0123", "X-Api-Key: [redacted]"),
        ("aws_secret_access_key = " + "wJal/K7M" * 5, "aws_secret_access_key = [redacted]"),
        ("curl -H 'Authorization: Bearer s3cretvalue' x", "curl -H 'Authorization: Bearer [redacted]' x"),
    ],
)
@pytest.mark.parametrize("size", [1, 3, 1000])
def test_of_a_header_the_value_is_masked(text: str, expected: str, size: int) -> None:
    stream = Redactor().stream()
    pieces = [stream.feed(text[start : start + size]) for start in range(0, len(text), size)]
    assert "".join(pieces) + stream.flush() == expected == Redactor().redact(text)


@pytest.mark.parametrize(
    "text",
    [
        "Authorization: required",
        'headers = {"Authorization": f"Bearer {token}"}',
        "see the -----BEGIN CERTIFICATE----- block",
        "at 12:34:56 on 2026-11-16T03:04:05.123456Z, ratio 1234567:89",
        "the sk-learn package, task-antics, ghp_short, AKIAsomething",
        "git commit 3f786850e387550fdab836ed7e6dc881de23001b",
    ],
)
def test_ordinary_text_is_left_alone(text: str) -> None:
    assert Redactor().redact(text) == text


def test_a_known_secret_goes_before_its_shape() -> None:
    token = SHAPES["github classic"]
    assert (
        redactor(GITHUB=token).redact(f"Authorization: token {token}")
        == "Authorization: token [secret:GITHUB]"
    )


def test_a_key_that_was_cut_off_is_masked_as_far_as_it_goes() -> None:
    assert Redactor().redact(PEM[:200]) == "[redacted]"


def test_a_stream_lets_ordinary_text_go_at_once() -> None:
    stream = redactor(APP_KEY=PEM, TOKEN=TOKEN).stream()
    assert stream.feed("The build is green, ") == "The build is green, "
    assert (
        stream.feed("and -----BEGIN PRIVATE KEY----- is how a key begins. " + "So it goes on. " * 30).count(
            "goes"
        )
        > 10
    )


def test_a_line_that_ended_is_not_held_back_for_its_last_letters() -> None:
    stream = redactor(TOKEN="2b-or-not-2b").stream()
    assert stream.feed("printed 1\n") + stream.end_of_line() == "printed 1\n"
    assert stream.feed("printed 2\n") + stream.end_of_line() == "printed 2\n"
    assert stream.end_of_line() == ""
    assert stream.feed("printed 2b\n") + stream.end_of_line() == "printed 2b\n"
    assert stream.feed("-or-not-2b, and so on\n") + stream.end_of_line() == "[secret:TOKEN], and so on\n"


@unhurried
@given(secrets, encodings, surroundings, surroundings, st.lists(st.integers(0, 500), max_size=4))
def test_of_a_secret_that_ended_lines_show_hardly_more_than_its_first_letters(
    secret: str, encoding: str, before: str, after: str, cuts: list[int]
) -> None:
    masks = redactor(NAME=secret)
    text = f"{before}{ENCODINGS[encoding](secret)}{after}"
    bounds = [0, *sorted(cut % (len(text) + 1) for cut in cuts), len(text)]
    stream = masks.stream()
    pieces = [
        stream.feed(text[start:end]) + stream.end_of_line() for start, end in itertools.pairwise(bounds)
    ]
    shown = "".join(pieces) + stream.flush()
    assert "[secret:NAME]" in shown
    if secret not in before + "[secret:NAME]" + after:
        assert secret not in shown.replace("\n", "")


def test_a_stream_holds_a_bounded_amount() -> None:
    masks = redactor(A="a" * 40)
    stream = masks.stream()
    shown = "".join(stream.feed("a" * 1000) for _ in range(60))
    assert shown == "[secret:A]"
    assert len(stream._held) < 25_000
    assert stream.feed("b ") + stream.flush() == "b "


def test_nested_values_are_masked_keys_included() -> None:
    masks = redactor(TOKEN="s3cret-value", PIN="1234567890")
    value = {
        "s3cret-value": ["x s3cret-value", ("y", {"z": "s3cret-value"})],
        "count": 3,
        "pin": 1234567890,
        "ok": True,
        "ratio": 0.5,
        "none": None,
        "raw": b"s3cret-value",
        "held": Secret("another one"),
        "error": ValueError("bad s3cret-value"),
    }
    assert masks.redact_value(value) == {
        "[secret:TOKEN]": ["x [secret:TOKEN]", ("y", {"z": "[secret:TOKEN]"})],
        "count": 3,
        "pin": "[secret:PIN]",
        "ok": True,
        "ratio": 0.5,
        "none": None,
        "raw": "[secret:TOKEN]",
        "held": "[secret]",
        "error": "ValueError('bad [secret:TOKEN]')",
    }


def test_a_value_too_deep_to_walk_is_no_crash() -> None:
    value: list[object] = ["s3cret-value"]
    for _ in range(100_000):
        value = [value]
    assert "s3cret" not in json.dumps(redactor(TOKEN="s3cret-value").redact_value(value))
    while value and isinstance(value[0], list):
        value = value[0]


def test_it_is_a_log_processor() -> None:
    out = io.StringIO()
    log = structlog.wrap_logger(
        structlog.PrintLogger(out),
        processors=[
            structlog.processors.format_exc_info,
            redactor(T="s3cret-value"),
            structlog.processors.JSONRenderer(),
        ],
    )
    try:
        raise ValueError("no s3cret-value here")
    except ValueError:
        log.exception(
            "failed with s3cret-value", url="https://x/?t=s3cret-value", nested={"a": ["s3cret-value"]}
        )
    assert "s3cret" not in out.getvalue()
    assert out.getvalue().count("[secret:T]") >= 4


def test_the_set_changes_while_a_stream_runs() -> None:
    masks = Redactor()
    stream = masks.stream()
    assert stream.feed("old-secret-1 ") == "old-secret-1 "
    masks.add("A", Secret("old-secret-1"))
    assert stream.feed("old-secret-1 ") == "[secret:A] "
    masks.replace({"B": Secret("new-secret-2")})
    assert stream.feed("old-secret-1 new-secret-2 ") == "old-secret-1 [secret:B] "
    masks.discard("B")
    assert masks.redact("new-secret-2") == "new-secret-2"


@dataclass(frozen=True, slots=True)
class Page:
    title: str
    html: str


class Row(NamedTuple):
    name: str
    value: str


class Opaque:
    def __repr__(self) -> str:
        return f"<{TOKEN}>"


def test_what_is_shown_by_its_fields_keeps_them() -> None:
    redactor = Redactor({"token": Secret(TOKEN)})
    page = Page("Set-up", f"<p>Authorization: Bearer {TOKEN}</p>")
    assert redactor.redact_value({"page": page, "row": Row("a", TOKEN)}) == {
        "page": Page("Set-up", "<p>Authorization: Bearer [secret:token]</p>"),
        "row": Row("a", "[secret:token]"),
    }
    clean = Page("Set-up", "<p>nothing</p>")
    assert redactor.redact_value(clean) is clean
    assert redactor.redact_value(Opaque()) == "<[secret:token]>"
