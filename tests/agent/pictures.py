"""The smallest picture, and the smallest document."""

from __future__ import annotations

import base64
import io

from PIL import Image

PNG = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg=="
)


def _pdf() -> bytes:
    data = io.BytesIO()
    Image.new("1", (8, 8)).save(data, "PDF")
    return data.getvalue()


PDF = _pdf()
"""A real one, of one page."""
