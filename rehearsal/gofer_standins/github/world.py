"""What the stand-in's GitHub consists of. Its rows are the ground truth of a test."""

from __future__ import annotations

import itertools
import math
import secrets
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Literal

Level = Literal["read", "write"]


def stamp(seconds: float | None = None) -> str:
    """A time as GitHub writes it."""
    return datetime.fromtimestamp(time.time() if seconds is None else seconds, UTC).strftime(
        "%Y-%m-%dT%H:%M:%SZ"
    )


@dataclass
class User:
    """An account."""

    id: int
    login: str
    type: Literal["User", "Bot"] = "User"


@dataclass
class Comment:
    """A comment on an issue or pull request, or on a line of a diff."""

    id: int
    number: int
    user: User
    body: str
    created_at: str = field(default_factory=stamp)
    updated_at: str = ""
    reactions: list[tuple[str, str]] = field(default_factory=list)
    """Login and content."""
    edits: int = 0
    ghost: bool = False
    """Its author's account was deleted since: GitHub shows none."""
    path: str = ""
    """Of a review comment: the file it is about."""
    thread: int = 0
    """Of a review comment: the first one of its thread."""
    line: int = 0
    start_line: int = 0
    side: str = "RIGHT"
    hunk: str = "@@"
    review: int = 0
    """Of a review comment: the review it is part of."""
    resolved: bool = False
    """Of the first one of a thread."""


@dataclass
class Issue:
    """An issue, or with `head` a pull request."""

    number: int
    title: str
    body: str
    user: User
    created_at: str = field(default_factory=stamp)
    labels: list[str] = field(default_factory=list)
    reactions: list[tuple[str, str]] = field(default_factory=list)
    state: Literal["open", "closed"] = "open"
    head: str = ""
    base: str = ""
    draft: bool = False
    head_repository: str = ""
    """The full name of the fork it comes from, or of the repository itself."""
    reviewers: list[str] = field(default_factory=list)
    locked: bool = False
    """Only who may write to the repository can comment; an App cannot, whatever it may do."""
    merged_at: str = ""
    merged_sha: str = ""
    """Its head at the moment of the merge: the branch may be gone since."""


@dataclass
class CheckRun:
    """A check on a commit."""

    id: int
    name: str
    head_sha: str
    status: str
    by: str
    conclusion: str | None = None
    external_id: str = ""
    output: dict[str, Any] = field(default_factory=dict)
    log: str = ""
    """What a workflow wrote, if a workflow made it."""


@dataclass
class Review:
    """A review of a pull request as a whole."""

    id: int
    number: int
    user: User
    body: str
    state: str
    """APPROVED, CHANGES_REQUESTED or COMMENTED."""
    commit_id: str = ""
    submitted_at: str = field(default_factory=stamp)


@dataclass
class Repository:
    """A repository with its bare git directory."""

    id: int
    full_name: str
    path: Path
    default_branch: str = "main"
    owner: int = 1
    """The number of the account it belongs to."""
    archived: bool = False
    drafts: bool = True
    """Whether draft pull requests are supported: private repositories of free accounts have none."""
    protected: set[str] = field(default_factory=set)
    """Branches that a rule protects."""
    permissions: dict[str, str] = field(default_factory=dict)
    issues: dict[int, Issue] = field(default_factory=dict)
    comments: dict[int, Comment] = field(default_factory=dict)
    review_comments: dict[int, Comment] = field(default_factory=dict)
    reviews: dict[int, Review] = field(default_factory=dict)
    check_runs: dict[int, CheckRun] = field(default_factory=dict)
    statuses: list[dict[str, Any]] = field(default_factory=list)
    """Commit statuses, oldest first."""
    lfs: dict[str, bytes] = field(default_factory=dict)
    """What Git LFS keeps of it, by hash."""
    sent: int = 0
    """Bytes that git fetched of it so far."""

    def next_number(self) -> int:
        return max(self.issues, default=0) + 1


@dataclass
class App:
    """A GitHub App."""

    id: int
    slug: str
    public_key: str
    webhook_secret: str
    hook_url: str = ""
    """Empty for one at which nobody answers."""
    permissions: dict[str, str] = field(default_factory=dict)
    events: list[str] = field(default_factory=list)
    active: bool = True
    """Whether deliveries are tried at all; what is not tried is not listed either."""

    @property
    def user(self) -> User:
        return User(10_000_000 + self.id, f"{self.slug}[bot]", "Bot")


@dataclass
class Installation:
    """Where an App is installed."""

    id: int
    app: App
    repositories: set[str]
    permissions: dict[str, str]
    suspended: bool = False


@dataclass
class Token:
    """What a bearer may do: everything its user may, or what an installation granted."""

    value: str
    user: User
    installation: Installation | None = None
    repositories: set[str] = field(default_factory=set)
    permissions: dict[str, str] = field(default_factory=dict)
    until: float = math.inf
    calls: list[str] = field(default_factory=list)
    """Method and path of everything it was used for while it lived."""


@dataclass
class Delivery:
    """One try to deliver a webhook."""

    id: int
    guid: str
    event: str
    payload: dict[str, Any]
    status_code: int = 0
    delivered_at: str = field(default_factory=stamp)
    redelivery: bool = False
    app: int = 0
    """Whose it is."""


@dataclass
class GitHubWorld:
    """Everything there is."""

    users: dict[str, User] = field(default_factory=dict)
    repositories: dict[str, Repository] = field(default_factory=dict)
    apps: dict[int, App] = field(default_factory=dict)
    installations: dict[int, Installation] = field(default_factory=dict)
    tokens: dict[str, Token] = field(default_factory=dict)
    minted: list[Token] = field(default_factory=list)
    """Every installation token there ever was, revoked ones included."""
    moved: dict[str, int] = field(default_factory=dict)
    """Names that repositories had before, with their numbers: who asks there is sent on, until the name is taken."""
    deliveries: list[Delivery] = field(default_factory=list)
    token_seconds: float = 3600.0
    """How long a new token lives."""
    assets: dict[str, bytes] = field(default_factory=dict)
    """Pictures that people uploaded, by their id."""
    signature: str = field(default_factory=lambda: secrets.token_hex(8))
    """What opens them, as the API gives it out."""
    codes: dict[str, App] = field(default_factory=dict)
    """Manifest codes, each good for one exchange."""
    _numbers: Iterator[int] = field(default_factory=lambda: itertools.count(1001))

    def next_id(self) -> int:
        return next(self._numbers)

    def by_number(self, number: int) -> Repository | None:
        """A repository, whatever it is called now."""
        return next((one for one in self.repositories.values() if one.id == number), None)

    def now_called(self, full_name: str) -> Repository | None:
        """The repository that had this name, when it has another now and nobody took the name."""
        if full_name in self.repositories or full_name not in self.moved:
            return None
        return self.by_number(self.moved[full_name])

    def user(self, login: str) -> User:
        """A person, made when not there yet."""
        return self.users.setdefault(login, User(self.next_id(), login))

    def token(self, **values: Any) -> Token:
        """A new token; installation tokens are long, and their length is nobody's business."""
        prefix = "ghs_" if values.get("installation") else "github_pat_"
        until = time.time() + self.token_seconds
        made = Token(value=f"{prefix}{secrets.token_hex(40)}", until=until, **values)
        self.tokens[made.value] = made
        if made.installation is not None:
            self.minted.append(made)
        return made
