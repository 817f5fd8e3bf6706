"""What a sandbox may reach, as data, and the one reading of a request's path, so that ours and the upstream's cannot
differ."""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from urllib.parse import unquote_to_bytes, urlsplit

from gofer_sandbox.errors import InvalidInput
from gofer_sandbox.network.credential import Credential
from gofer_sandbox.network.errors import ProxyRefused

_LABEL = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_HOST = re.compile(rf"{_LABEL}(?:\.{_LABEL})*\.?")
_NAME = re.compile(r"[a-z0-9][a-z0-9-]{0,62}")
_METHOD = re.compile(r"[A-Z]{1,20}")
_NEVER = {"CONNECT", "TRACE"}
_RAW = re.compile(r"/(?:[A-Za-z0-9._~!$&'()*+,;=:@/-]|%[0-9A-Fa-f]{2})*")
_SERVICES = ("git-upload-pack", "git-receive-pack")


Objections = Callable[[Sequence[str]], Awaitable[Mapping[str, str]]]
"""Says of refs or objects why each that is not allowed is not; may raise Unanswered."""


def host_name(text: str) -> str | None:
    """The name in its one spelling, or None where it is not a host's name or an IPv4 address."""
    lower = text.lower()
    return lower.removesuffix(".") if len(lower) <= 254 and _HOST.fullmatch(lower) else None


@dataclass(frozen=True, slots=True)
class AllowedHost:
    """Hosts the forward proxy connects to.

    `pattern` is a name, `*.name` for all names below it (not itself), or `*` for every public host.
    `allow_private` permits private and loopback addresses for these hosts alone: for tests and development.
    """

    pattern: str
    ports: tuple[int, ...] = (443, 80)
    allow_private: bool = False

    def __post_init__(self) -> None:
        bare = self.pattern.removeprefix("*.")
        if self.pattern != "*" and host_name(bare) != bare:
            raise InvalidInput(f"{self.pattern!r} is not a host name in lower case, nor '*.name', nor '*'")
        if not self.ports or not all(0 < port < 65536 for port in self.ports):
            raise InvalidInput(f"the ports of {self.pattern!r} must be between 1 and 65535")

    def matches(self, host: str, port: int) -> bool:
        """Whether a name in its one spelling, at that port, is meant."""
        if self.pattern.startswith("*."):
            return port in self.ports and host.endswith(self.pattern[1:])
        return port in self.ports and self.pattern in ("*", host)


@dataclass(frozen=True, slots=True)
class GitAccess:
    """What git may do with a repository.

    `push` are patterns of full ref names; `*` stands for anything, slashes included. Whether a push is forced
    cannot be seen in it: protect such branches at the upstream. `objections` is asked about the refs of every
    push that is allowed otherwise, and says why each that may not be changed is not; it may raise Unanswered.
    Refs that strangers make (`refs/pull/`, `refs/merge-requests/`) are never seen, nor their commits:
    `commit_objections` is asked about objects that a fetch wants and no visible ref names, and says why each that
    may not be fetched is not. Without it none may.
    """

    fetch: bool = True
    push: tuple[str, ...] = ()
    deletes: bool = False
    tags: bool = False
    objections: Objections | None = None
    commit_objections: Objections | None = None

    def __post_init__(self) -> None:
        for pattern in self.push:
            if not pattern.startswith("refs/"):
                raise InvalidInput(f"{pattern!r} must be a full ref name such as refs/heads/work/*")

    def require(self, pushes: bool) -> None:
        """Raise ProxyRefused where that direction is closed."""
        if pushes and not self.push:
            raise ProxyRefused("this sandbox may not push here")
        if not pushes and not self.fetch:
            raise ProxyRefused("fetching is closed")


@dataclass(frozen=True, slots=True)
class Rule:
    """One upstream behind the reverse proxy, reached inside as `http://127.0.0.1:<port>/<name>/<path>`.

    `paths` are allowed with everything below them. With `git` given, only git's smart HTTP is spoken, the
    paths are repositories (with or without `.git`), and `methods` follow from it. `allow_private` permits
    private and loopback upstreams: for tests and development. `lender` is asked for the credential whenever a
    request needs it, where one does not last as long as the rule, and told of one that the upstream refused; it may
    raise Unanswered. So may `moved`, which is asked where the paths are now when the upstream sends a request to one
    that is not among them: what it names is allowed too, until the grant ends.
    """

    name: str
    upstream: str
    paths: tuple[str, ...]
    methods: tuple[str, ...] = ("GET", "HEAD")
    credential: Credential | None = None
    git: GitAccess | None = None
    allow_private: bool = False
    lender: Callable[[Credential | None], Awaitable[Credential]] | None = None
    moved: Callable[[], Awaitable[Sequence[str]]] | None = None

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise InvalidInput(f"{self.name!r} is not a rule's name: lower-case letters, digits and dashes")
        parts = urlsplit(self.upstream)
        if parts.scheme not in ("http", "https") or not parts.hostname or host_name(parts.hostname) is None:
            raise InvalidInput(f"{self.upstream!r} is not an http or https URL")
        if parts.path or parts.query or parts.fragment or parts.username is not None:
            raise InvalidInput(f"{self.upstream!r} must be scheme, host and port only; paths go in `paths`")
        for path in self.paths:
            if not path.startswith("/") or "//" in path or "%" in path:
                raise InvalidInput(f"{path!r} must begin with one slash and be written without escapes")
        for method in self.methods:
            if not _METHOD.fullmatch(method) or method in _NEVER:
                raise InvalidInput(f"method {method!r} cannot be allowed")

    async def as_of_now(self, refused: Credential | None = None) -> Rule:
        """The rule with the credential that its lender gives now: another than the one that was refused."""
        if self.lender is None:
            return self
        return replace(self, credential=await self.lender(refused), lender=None)

    @property
    def secrets(self) -> tuple[bytes, ...]:
        """What must not come back."""
        return self.credential.secrets if self.credential else ()

    @property
    def host(self) -> str:
        """The upstream's name."""
        return urlsplit(self.upstream).hostname or ""

    @property
    def secure(self) -> bool:
        """Whether the upstream is spoken to with TLS."""
        return self.upstream.startswith("https:")

    @property
    def port(self) -> int:
        """The upstream's port."""
        return urlsplit(self.upstream).port or (443 if self.secure else 80)

    def permits(self, path: str) -> bool:
        """Whether one of the rule's paths is this one or above it."""
        return any(path == prefix or path.startswith(f"{prefix.rstrip('/')}/") for prefix in self.paths)

    def git_service(self, method: str, path: str, query: str) -> str | None:
        """Which service of git a request asks for at one of the rule's repositories; None for anything else."""
        rest = next(self._below_repositories(path), "")
        name = query.removeprefix("service=")
        if (method, rest) == ("GET", "info/refs") and query != name and name in _SERVICES:
            return name
        return rest if method == "POST" and rest in _SERVICES and not query else None

    def lfs_path(self, path: str) -> str:
        """What a path asks of a repository's LFS; empty when it is something else."""
        return next((rest for rest in self._below_repositories(path) if rest.startswith("info/lfs/")), "")

    def _below_repositories(self, path: str) -> Iterator[str]:
        """The rest of a path that begins with one of the rule's repositories."""
        for repository in self.paths:
            bare = repository.rstrip("/").removesuffix(".git")
            for prefix in (f"{bare}/", f"{bare}.git/"):
                if path.startswith(prefix):
                    yield path.removeprefix(prefix)


def split_target(target: str) -> tuple[str, str, str]:
    """Rule name, path with its escapes, and query of `/name/path?query`."""
    path, _, query = target.partition("?")
    _, name, rest = (*path.split("/", 2), "", "")[:3]
    return name, f"/{rest}", query


def decode_path(path: str) -> str:
    """The path without escapes; ProxyRefused where it could be read in two ways."""
    if not _RAW.fullmatch(path):
        raise ProxyRefused("the path has characters that are not allowed", status=400, path=path)
    parts = [_decode_part(part, path) for part in path.split("/")[1:]]
    if "" in parts[:-1]:
        raise ProxyRefused("the path has an empty part", status=400, path=path)
    return "/" + "/".join(parts)


def _decode_part(part: str, path: str) -> str:
    try:
        plain = unquote_to_bytes(part).decode()
    except UnicodeDecodeError:
        raise ProxyRefused("the path is not UTF-8", status=400, path=path) from None
    if plain in (".", "..") or not plain.isprintable() or any(c in plain for c in "/\\%"):
        raise ProxyRefused("the path has a part that could be read in two ways", status=400, path=path)
    return plain
