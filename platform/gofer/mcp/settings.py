"""`[mcp.NAME]` in an agent's file: a server whose tools the agent may use."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Callable, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Annotated, Any, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, model_validator

from gofer.tool import Tier, Tool

SERVER = re.compile(r"[a-z0-9][a-z0-9-]{0,19}")
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]{0,99}")
_HEADER = re.compile(r"[A-Za-z0-9-]{1,100}")
_FORBIDDEN = frozenset({"host", "content-length", "content-type", "accept", "mcp-session-id"})


def _server_name(name: str) -> str:
    if not SERVER.fullmatch(name):
        raise ValueError("a server's name has a-z, 0-9 and -, 20 characters at most")
    return name


ServerName = Annotated[str, AfterValidator(_server_name)]


class McpServerSettings(BaseModel):
    """One server: a command that is run in a sandbox, or a URL."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    command: str = ""
    """A program that speaks MCP on stdin and stdout. It runs in a sandbox of its own."""
    args: tuple[str, ...] = ()
    env: dict[str, str] = Field(default_factory=dict)
    """Variables of the command; never secrets."""
    readonly: tuple[str, ...] = ()
    """Folders of this machine that the command may read, beside the system's own."""
    hosts: tuple[str, ...] = ()
    """Hosts that the command may reach; without one it has no network."""
    url: str = ""
    """The address of a server that speaks streamable HTTP."""
    headers: dict[str, str] = Field(default_factory=dict)
    bearer: str = ""
    """The name of the secret that is sent as the bearer token."""
    secrets: dict[str, str] = Field(default_factory=dict)
    """Secrets by name, for each variable of the command or header of the request that has one."""
    oauth: bool = False
    """The server wants OAuth. An owner authorises Gofer once: gofer mcp authorise."""
    client_id: str = ""
    """Who we are to a server at which clients are registered by hand; others register us by themselves."""
    client_secret: str = ""
    """The name of the secret that goes with it, where there is one."""
    tools: tuple[str, ...] = ("*",)
    """Which of its tools the agent may use; `*` stands for any characters."""
    tier: Tier = Tier.NETWORK
    """What harm its tools can do, whatever the server says of them."""
    tiers: dict[str, Tier] = Field(default_factory=dict)
    """The tier of single tools."""
    trusted: bool = False
    """Nobody but trusted people writes what it answers: its results do not narrow the run."""
    keep_open: bool = False
    """It may be called after the run has read strangers' text."""
    timeout: float = Field(default=60, ge=1, le=3600)
    """Seconds that a call may take."""
    start_timeout: float = Field(default=30, ge=1, le=600)
    """Seconds that the server may take to start or to be reached."""

    @model_validator(mode="after")
    def _one_way(self) -> Self:
        if bool(self.command) == bool(self.url):
            raise ValueError("give either a command or a url")
        if self.url:
            _check_url(self)
        else:
            _check_command(self)
        return self

    @property
    def reaches_out(self) -> bool:
        """Whether what it is told can leave this machine."""
        return bool(self.url or self.hosts)

    @property
    def secret_names(self) -> list[str]:
        """The secrets that it needs, each once."""
        given = (*self.secrets.values(), self.bearer, self.client_secret)
        return [name for name in dict.fromkeys(given) if name]

    def kept_as(self, server: str, what: str) -> str:
        """Under which name what was granted for the server's address is kept among the secrets."""
        return f"mcp_{server}_{hashlib.sha256(self.url.encode()).hexdigest()[:8]}_{what}"

    def allows(self, tool: str) -> bool:
        """Whether the agent may use a tool of the server."""
        return any(fnmatchcase(tool, pattern) for pattern in self.tools)

    def tier_of(self, tool: str) -> Tier:
        """A tool's tier, by these settings alone."""
        return self.tiers.get(tool, self.tier)


@dataclass(frozen=True, slots=True)
class RunServers:
    """What an agent's servers bring to a run."""

    tools: tuple[Tool[Any], ...] = ()
    notes: tuple[str, ...] = ()
    """What the agent is told of servers that cannot be used now."""


ServersForRun = Callable[[Mapping[str, McpServerSettings]], AbstractAsyncContextManager[RunServers]]


def _check_url(given: McpServerSettings) -> None:
    try:
        parts = urlsplit(given.url)
        parts.port  # noqa: B018 - raises for a port that is none
    except ValueError:
        raise ValueError("url: this is no URL") from None
    if parts.scheme not in ("http", "https") or not parts.hostname:
        raise ValueError("url: should begin with https:// or http:// and name a host")
    if parts.username or parts.password:
        raise ValueError("url: name secrets with bearer or secrets, not in the URL")
    for field in ("args", "env", "readonly", "hosts"):
        if getattr(given, field):
            raise ValueError(f"{field} is for a command, not for a url")
    _check_names("header", {**given.headers, **given.secrets}, _HEADER)
    if stray := _FORBIDDEN & {name.lower() for name in (*given.headers, *given.secrets)}:
        raise ValueError(f"the header {min(stray)} is not yours to set")
    if (given.client_id or given.client_secret) and not (given.oauth and given.client_id):
        raise ValueError("client_id and client_secret are for oauth = true; the secret needs the id")
    if given.oauth and (given.bearer or "authorization" in {name.lower() for name in given.secrets}):
        raise ValueError("oauth brings its own token; remove bearer and the authorization header")


def _check_command(given: McpServerSettings) -> None:
    if given.headers or given.bearer or given.oauth or given.client_id or given.client_secret:
        raise ValueError(
            "headers, bearer, oauth, client_id and client_secret are for a url, not for a command"
        )
    _check_names("variable", {**given.env, **given.secrets}, _VARIABLE)


def _check_names(what: str, given: Mapping[str, str], pattern: re.Pattern[str]) -> None:
    for name, value in given.items():
        if not pattern.fullmatch(name):
            raise ValueError(f"{name[:60]!r} is no name of a {what}")
        if any(character in value for character in "\r\n\x00"):
            raise ValueError(f"the value of {name} has a line break")


def as_table(name: str, settings: McpServerSettings) -> str:
    """The table of a server as an agent's file has it, with what is not as it would be anyway."""
    given = settings.model_dump(mode="json", exclude_defaults=True)
    return "\n".join([f"[mcp.{name}]", *(f"{key} = {_toml(value)}" for key, value in given.items())]) + "\n"


def _toml(value: Any) -> str:
    if isinstance(value, dict):
        return "{ " + ", ".join(f"{json.dumps(key)} = {_toml(one)}" for key, one in value.items()) + " }"
    if isinstance(value, list):
        return f"[{', '.join(map(_toml, value))}]"
    return json.dumps(value, ensure_ascii=False)


def without_table(text: str, name: str) -> str:
    """An agent's file without the tables of a server."""
    header = re.compile(rf"\s*\[\s*mcp\s*\.\s*[\"']?{re.escape(name)}[\"']?\s*[\].]")
    kept: list[str] = []
    inside = False
    for line in text.splitlines(keepends=True):
        if line.lstrip().startswith("["):
            inside = header.match(line) is not None
        if not inside:
            kept.append(line)
    return "".join(kept)


def with_table(text: str, name: str, settings: McpServerSettings) -> str:
    """An agent's file with a server, in the place of the one of that name if there is one."""
    before = without_table(text, name).rstrip("\n")
    return (f"{before}\n\n" if before else "") + as_table(name, settings)
