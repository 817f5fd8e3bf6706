"""PDFs on their way to a model that takes them: recognised by their bytes, never by their name."""

from __future__ import annotations

import base64

from gofer.agent.model import Block

PDF = "application/pdf"
MAX_PDF = 10_000_000
"""Bytes; providers take requests of about three times that."""
BYTES_PER_TOKEN = 8
"""Of a PDF, on the high side: each page is read as text and as an image."""
MIN_TOKENS, MAX_TOKENS = 3_000, 300_000


def document_block(data: bytes, title: str) -> Block | None:
    """The PDF as the API wants it; None when it would be refused."""
    if not data.startswith(b"%PDF-") or len(data) > MAX_PDF:
        return None
    source = {"type": "base64", "media_type": PDF, "data": base64.b64encode(data).decode()}
    return {"type": "document", "source": source, "title": title[:200] or "document.pdf"}


def document_stub(title: str) -> str:
    """The note for a model that accepts no PDFs, or not this one."""
    return f"[the PDF {title[:200] or 'without a name'} is not shown: work on the file in the shell]"


def document_tokens(size: int) -> int:
    """Estimated tokens of a PDF of so many bytes."""
    return min(MAX_TOKENS, max(MIN_TOKENS, size // BYTES_PER_TOKEN))
