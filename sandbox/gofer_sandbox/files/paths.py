"""Which strings may be paths."""

from __future__ import annotations

from gofer_sandbox.files.errors import InvalidPath

PATH_LIMIT = 4095
NAME_LIMIT = 255
DEPTH_LIMIT = 128


def checked(path: object, base: str = "/") -> str:
    """The absolute path inside the sandbox, or InvalidPath saying why it cannot be one.

    `..` and links are left for the kernel to resolve: doing it here by text would be wrong behind a link.
    """
    if not isinstance(path, str):
        raise InvalidPath(repr(path)[:80], f"a path is a string, not {type(path).__name__}")
    if not path:
        raise InvalidPath(path, "the path is empty")
    if "\0" in path:
        raise InvalidPath(path, "a path cannot hold a NUL character")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InvalidPath(path, "a path cannot hold lone surrogates") from None
    whole = path if path.startswith("/") else f"{base.rstrip('/')}/{path}"
    parts = whole.split("/")
    if len(whole.encode()) > PATH_LIMIT or any(len(part.encode()) > NAME_LIMIT for part in parts):
        raise InvalidPath(path, f"longer than {PATH_LIMIT} bytes, or a name in it longer than {NAME_LIMIT}")
    if len(parts) > DEPTH_LIMIT:
        raise InvalidPath(path, f"deeper than {DEPTH_LIMIT} directories")
    return whole


def split(path: str) -> tuple[str, str]:
    """The directory and the last name; InvalidPath where there is no name to create."""
    parent, _, name = path.rpartition("/")
    if name in ("", ".", ".."):
        raise InvalidPath(path, "the path names a directory, not a file")
    return parent or "/", name
