"""Images on their way to a model: recognised by their bytes, never by their name."""

from __future__ import annotations

import base64
import struct

from gofer.agent.model import Block

MAX_BYTES = 5_000_000
MAX_SIDE = 8000


def image_type(data: bytes) -> str | None:
    """The media type when these bytes begin like an image that models take."""
    if data.startswith(b"\x89PNG\r\n\x1a\n"):
        return "image/png"
    if data.startswith(b"\xff\xd8\xff"):
        return "image/jpeg"
    if data.startswith((b"GIF87a", b"GIF89a")):
        return "image/gif"
    if data.startswith(b"RIFF") and data[8:12] == b"WEBP":
        return "image/webp"
    return None


def problem(data: bytes) -> str | None:
    """Why a model would refuse this image; None when it should not."""
    kind = image_type(data)
    if kind is None:
        return "this is not a PNG, JPEG, GIF or WebP image"
    if len(data) > MAX_BYTES:
        return f"the image has {len(data)} bytes, more than {MAX_BYTES}"
    size = _png_size(data) if kind == "image/png" else None
    if kind == "image/png" and (size is None or not all(0 < side <= MAX_SIDE for side in size)):
        return "the image is damaged or too large"
    return None


def _png_size(data: bytes) -> tuple[int, int] | None:
    if len(data) < 45 or data[12:16] != b"IHDR":
        return None
    width, height = struct.unpack(">II", data[16:24])
    return int(width), int(height)


def image_block(data: bytes) -> Block | None:
    """The image as the API wants it; None when it would be refused."""
    if problem(data) is not None:
        return None
    source = {"type": "base64", "media_type": image_type(data), "data": base64.b64encode(data).decode()}
    return {"type": "image", "source": source}
