"""What a job brings into its shell, as data: ways out with a credential that never enters it, and files."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

Password: TypeAlias = str | Callable[[str], Awaitable[str]]
"""A secret, or how to get it: asked for with every request, where it does not last as long as a job may. Asked with
the one that the service refused before its time, or with nothing."""


@dataclass(frozen=True, slots=True)
class EgressRule:
    """A way out of a shell, as data: open only while a tool of the job that brought it runs."""

    name: str
    """Lower case, and unique within an integration."""
    upstream: str
    """Scheme, host and port."""
    paths: tuple[str, ...]
    """Allowed with everything below them; with git, repositories."""
    methods: tuple[str, ...] = ("GET", "HEAD")
    git_push: tuple[str, ...] | None = None
    """Patterns of full ref names that may be pushed, where git is spoken; None where it is not."""
    git_objections: Callable[[Sequence[str]], Awaitable[Mapping[str, str]]] | None = field(
        default=None, repr=False
    )
    """Asked about the full ref names of each push that is allowed otherwise: why those that may not be changed
    are not. While it raises, nothing is pushed."""
    git_commit_objections: Callable[[Sequence[str]], Awaitable[Mapping[str, str]]] | None = field(
        default=None, repr=False
    )
    """Asked about commits that a fetch wants by their numbers and that no branch or tag names: why those that may
    not be read are not. Without it none may; while it raises, none is."""
    allow_private: bool = False
    """Whether the upstream may be on a private network."""
    keep: str = ""
    """With git: what its first repository is kept under for later clones by jobs of the same connection. It names
    the repository for ever, not as it is called now; empty for not at all."""
    moved: Callable[[], Awaitable[Sequence[str]]] | None = field(default=None, repr=False)
    """Asked when the upstream sends a request to another path: where `paths` are now. These are allowed then, too."""
    password: Password = field(default="", repr=False)
    """Instead of the equipment's, where one way out may do less than another. Never enters the shell."""


@dataclass(frozen=True, slots=True)
class ShellAccess:
    """What a job brings into its shell: files, and ways out whose credential is added outside."""

    rules: tuple[EgressRule, ...] = ()
    user: str = ""
    password: Password = field(default="", repr=False)
    """Never enters the shell."""
    files: Mapping[str, bytes] = field(default_factory=dict)
    """By path below the shell's home."""
    setup: str = ""
    """A command to run in the shell before the job's first."""
