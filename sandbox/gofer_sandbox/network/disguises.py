"""The forms in which a secret may come back: as it is, or as some part of an upstream would write it down.

An upstream that shows its caller the request it got does so in an address, in JSON, in a page or in base64. No
list is complete: whoever controls an upstream can spell a secret backwards. It is the last line behind rules
that name upstreams one trusts.
"""

from __future__ import annotations

import base64
import html
import json
import urllib.parse

_SHORTEST = 8
"""A shorter piece of base64 may be part of anything, and what is masked by mistake is spoilt."""


def disguises(secret: str) -> list[bytes]:
    """Every form, the secret itself first, none that contains another."""
    quoted = urllib.parse.quote(secret, safe="")
    data = secret.encode()
    texts = [
        quoted,
        _lower_escapes(quoted),
        urllib.parse.quote(secret),
        urllib.parse.quote_plus(secret),
        json.dumps(secret)[1:-1],
        json.dumps(secret)[1:-1].replace("/", "\\/"),
        html.escape(secret),
        data.hex(),
        data.hex().upper(),
        *_in_base64(data),
    ]
    found = [data]
    for text in texts:
        form = text.encode()
        if len(form) >= _SHORTEST and not any(shorter in form for shorter in found):
            found.append(form)
    return found


def _lower_escapes(quoted: str) -> str:
    """`%2F` as `%2f`; the rest stays as it is."""
    first, *rest = quoted.split("%")
    return "%".join([first, *(part[:2].lower() + part[2:] for part in rest)])


def _in_base64(data: bytes) -> list[str]:
    """What base64 makes of it after any number of bytes before it, without the characters at its ends, which
    depend on its neighbours; in both alphabets."""
    forms = []
    for before in range(3):
        whole = base64.b64encode(b"\0" * before + data).decode()
        end = len(whole) if (before + len(data)) % 3 == 0 else len(whole.rstrip("=")) - 1
        piece = whole[(0, 2, 3)[before] : end]
        forms += [piece, piece.translate({ord("+"): "-", ord("/"): "_"})]
    return forms
