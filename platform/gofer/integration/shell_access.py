"""What a job brings into its shell, as data: files, and network access whose credentials never enter the shell."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Password: TypeAlias = str | Callable[[str], Awaitable[str]]
"""A secret, or a function that returns it, called with every request, for a secret that may expire before the job ends.
Its argument is the secret that the service just refused, or empty."""


@dataclass(frozen=True, slots=True)
class EgressRule:
    """Network access of a shell to one upstream, open only while a tool of the job that brought it runs."""

    name: str
    """Lower case, and unique within an integration."""
    upstream: str
    """Scheme, host and port."""
    paths: tuple[str, ...]
    """Allowed with everything below them; with git, repositories."""
    methods: tuple[str, ...] = ("GET", "HEAD")
    git_push: tuple[str, ...] | None = None
    """Patterns of full ref names that git may push; None when the upstream is not git."""
    git_objections: Callable[[Sequence[str]], Awaitable[Mapping[str, str]]] | None = field(
        default=None, repr=False
    )
    """Called with the full ref names of each push that `git_push` allows. Returns the refs that must not change, with
    the reason. When it raises, nothing is pushed."""
    git_commit_objections: Callable[[Sequence[str]], Awaitable[Mapping[str, str]]] | None = field(
        default=None, repr=False
    )
    """Called with commits that a fetch wants by hash and that no branch or tag names. Returns the commits that must not
    be read, with the reason. Without it, or when it raises, none may be read."""
    allow_private: bool = False
    """Whether the upstream may be on a private network."""
    keep: str = ""
    """With git: the stable id under which the first repository is cached for later clones by jobs of the same
    connection; empty for no cache."""
    moved: Callable[[], Awaitable[Sequence[str]]] | None = field(default=None, repr=False)
    """Called when the upstream redirects a request: returns where `paths` are now. These are then allowed, too."""
    password: Password = field(default="", repr=False)
    """Replaces `ShellAccess.password` for this rule. Never enters the shell."""


@dataclass(frozen=True, slots=True)
class ShellAccess:
    """What a job brings into its shell: files, and rules whose credential is added outside the shell."""

    rules: tuple[EgressRule, ...] = ()
    user: str = ""
    password: Password = field(default="", repr=False)
    """Never enters the shell."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By path below the shell's home."""
    setup: str = ""
    """A command that runs in the shell before the job's first."""
