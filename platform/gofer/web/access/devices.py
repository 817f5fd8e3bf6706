"""A browser that has signed in before: a signed cookie, which gives it a throttle of its own.

It signs nobody in. It only keeps strangers who guess at a member's password from holding the member up.
"""

from __future__ import annotations

import base64
import binascii
import re
import secrets

from starlette.datastructures import Headers
from starlette.responses import Response

from gofer.vault.envelope import Vault

PLAIN_COOKIE, SECURE_COOKIE = "gofer_device", "__Host-gofer_device"
LIFE = 365 * 86400
PURPOSE = "device cookie"
_VALUE = re.compile(r"([A-Za-z0-9_-]{16,40})\.([A-Za-z0-9_-]{43})")


def device_of(vault: Vault, headers: Headers, member_id: str | None, *, secure: bool) -> str:
    """The id of the browser if this member signed in with it before; else empty."""
    name = SECURE_COOKIE if secure else PLAIN_COOKIE
    for part in ";".join(headers.getlist("cookie")).split(";"):
        key, _, value = part.strip().partition("=")
        found = _VALUE.fullmatch(value) if key == name and member_id else None
        if found and vault.mac_key(PURPOSE).fits(_mac(found[2]), str(member_id), found[1]):
            return found[1]
    return ""


def set_device(response: Response, vault: Vault, member_id: str, device: str, *, secure: bool) -> None:
    """Let the browser show next time that this member signed in with it."""
    device = device or secrets.token_urlsafe(16)
    signed = base64.urlsafe_b64encode(vault.mac_key(PURPOSE).mac(member_id, device)).decode().rstrip("=")
    response.set_cookie(
        SECURE_COOKIE if secure else PLAIN_COOKIE,
        f"{device}.{signed}",
        max_age=LIFE,
        path="/",
        secure=secure,
        httponly=True,
        samesite="lax",
    )


def _mac(text: str) -> bytes | None:
    try:
        return base64.urlsafe_b64decode(text + "=")
    except (binascii.Error, ValueError):
        return None
