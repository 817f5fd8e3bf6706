"""Paths of requests to the reverse proxy: one reading only, so that ours and the upstream's cannot differ."""

from __future__ import annotations

import re
from urllib.parse import unquote_to_bytes

from gofer_sandbox.network.errors import Refused
from gofer_sandbox.network.rules import Rule

_RAW = re.compile(r"/(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*")
_SERVICES = ("git-upload-pack", "git-receive-pack")


def split_target(target: str) -> tuple[str, str, str]:
    """Rule name, path with its escapes, and query of `/name/path?query`."""
    path, _, query = target.partition("?")
    _, name, rest = (*path.split("/", 2), "", "")[:3]
    return name, f"/{rest}", query


def decoded(path: str) -> str:
    """The path without escapes; Refused where it could be read in two ways."""
    if not _RAW.fullmatch(path):
        raise Refused("the path has characters that are not allowed", status=400, path=path)
    parts = [_decoded_part(part, path) for part in path.split("/")[1:]]
    if "" in parts[:-1]:
        raise Refused("the path has an empty part", status=400, path=path)
    return "/" + "/".join(parts)


def _decoded_part(part: str, path: str) -> str:
    try:
        plain = unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise Refused("the path is not UTF-8", status=400, path=path) from None
    if plain in (".", "..") or not plain.isprintable() or any(c in plain for c in "/\\%"):
        raise Refused("the path has a part that could be read in two ways", status=400, path=path)
    return plain


def permitted(rule: Rule, path: str) -> bool:
    """Whether one of the rule's paths is this one or above it."""
    return any(path == prefix or path.startswith(f"{prefix.rstrip('/')}/") for prefix in rule.paths)


def git_service(rule: Rule, method: str, path: str, query: str) -> str | None:
    """Which service of git a request asks for at one of the rule's repositories; None for anything else."""
    for repository in rule.paths:
        bare = repository.rstrip("/").removesuffix(".git")
        for prefix in (f"{bare}/", f"{bare}.git/"):
            if path.startswith(prefix):
                return _service(method, path.removeprefix(prefix), query)
    return None


def _service(method: str, rest: str, query: str) -> str | None:
    name = query.removeprefix("service=")
    if (method, rest) == ("GET", "info/refs") and query != name and name in _SERVICES:
        return name
    return rest if method == "POST" and rest in _SERVICES and not query else None
