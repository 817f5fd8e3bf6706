"""Images on their way to a model: recognised by their bytes, never by their name, and made smaller where they are
larger than a model has use for."""

from __future__ import annotations

import base64
import contextlib
import io
import struct
from typing import TYPE_CHECKING

from gofer.agent.model import Block

if TYPE_CHECKING:
    from PIL import Image

MAX_BYTES = 5_000_000
MAX_SIDE = 8000
SHOWN = ("image/png", "image/jpeg", "image/gif", "image/webp")
"""Media types that models take."""
ENOUGH_SIDE = 1600
"""Pixels of the longer side above which models gain nothing."""
ENOUGH_BYTES = 1_000_000
_MAX_PIXELS = 30_000_000
"""Pixels of the largest picture that is decoded in memory; a photo is first read at a fraction of its size."""


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


def smaller(data: bytes) -> bytes:
    """The image as a model has use for it: itself when it is small enough, or cannot be read. Takes a while."""
    from PIL import Image, ImageOps

    if image_type(data) is None:
        return data
    # Only formats whose bytes were recognised, so that nothing chooses a rarer reader for itself.
    with (
        contextlib.suppress(OSError, ValueError, SyntaxError, MemoryError, Image.DecompressionBombError),
        Image.open(io.BytesIO(data), formats=("PNG", "JPEG", "GIF", "WEBP")) as image,
    ):
        if max(image.size) <= ENOUGH_SIDE and len(data) <= ENOUGH_BYTES:
            return data
        image.draft("RGB", (ENOUGH_SIDE, ENOUGH_SIDE))
        if image.width * image.height > _MAX_PIXELS:
            return data
        image.thumbnail((ENOUGH_SIDE, ENOUGH_SIDE))
        made = io.BytesIO()
        _on_white(ImageOps.exif_transpose(image)).save(made, "JPEG", quality=85)
        return made.getvalue()
    return data


def _on_white(image: Image.Image) -> Image.Image:
    """Without transparency, which would turn black."""
    from PIL import Image

    if not image.has_transparency_data:
        return image.convert("RGB")
    seen_through = image.convert("RGBA")
    white = Image.new("RGB", image.size, "white")
    white.paste(seen_through, mask=seen_through.getchannel("A"))
    return white
