"""Static files: read once, served under a name that holds their hash, so that browsers may keep them for ever."""

from __future__ import annotations

import hashlib
import mimetypes
from dataclasses import dataclass
from pathlib import Path

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).parent / "static"
FOR_EVER = "public, max-age=31536000, immutable"
SERVED = frozenset({".js", ".css", ".svg", ".png", ".woff2"})


@dataclass(frozen=True, slots=True)
class _File:
    content: bytes
    media_type: str
    digest: str


class StaticFiles:
    """The files of one folder, in memory."""

    def __init__(self, folder: Path = FOLDER) -> None:
        self._files = {
            path.relative_to(folder).as_posix(): _read(path)
            for path in sorted(folder.rglob("*"))
            if path.suffix in SERVED
        }

    def url(self, name: str) -> str:
        """The URL of a file; raises KeyError for one that does not exist."""
        return f"/static/{self._files[name].digest}/{name}"

    async def serve(self, request: Request) -> Response:
        """The endpoint of `/static/{digest}/{name:path}`."""
        file = self._files.get(request.path_params["name"])
        if file is None or file.digest != request.path_params["digest"]:
            raise HTTPException(404, "There is no such file.")
        headers = {"cache-control": FOR_EVER, "x-content-type-options": "nosniff"}
        return Response(file.content, media_type=file.media_type, headers=headers)


def _read(path: Path) -> _File:
    content = path.read_bytes()
    media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return _File(content, media_type, hashlib.sha256(content).hexdigest()[:16])
