"""The arguments of the tools."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from gofer.tool import Arguments


class About(Arguments):
    """Which issue or pull request."""

    number: int | None = Field(default=None, ge=1, description="Default: the one this conversation is about.")


class OfFile(Arguments):
    """A file at a ref."""

    path: str = Field(min_length=1, max_length=1000)
    ref: str = Field(
        default="", max_length=250, description="Branch, tag or commit; default: the default branch."
    )


class Words(Arguments):
    """Something to look for."""

    query: str = Field(min_length=1, max_length=200)
    kind: Literal["issue", "pull"] = "issue"


class OfCheck(Arguments):
    """The log of a check."""

    check: int = Field(ge=1, description="The number that github_checks shows.")
    lines: int = Field(default=200, ge=1, le=2000, description="How many lines from its end.")


class Labels(Arguments):
    """Labels to put on."""

    labels: tuple[str, ...] = Field(min_length=1, max_length=10)


class Body(Arguments):
    """A text in Markdown."""

    body: str = Field(min_length=1, max_length=60_000)


class Remark(Body):
    """A comment somewhere else in the repository."""

    number: int = Field(ge=1)


class ThreadOf(Arguments):
    """A review comment, and with it its thread."""

    comment: int | None = Field(
        default=None, ge=1, description="The review comment's number. Default: the one that this request is."
    )


class ThreadReply(ThreadOf, Body):
    """An answer in the thread of a review comment."""


class ReviewComment(Arguments):
    """A comment on lines of a diff."""

    path: str = Field(min_length=1, max_length=1000)
    line: int = Field(ge=1, description="The line, or the last one of several, as numbered on its side.")
    start_line: int | None = Field(default=None, ge=1, description="The first of several lines.")
    side: Literal["new", "old"] = Field(default="new", description="old for a line that is removed.")
    body: str = Field(min_length=1, max_length=20_000)
    suggestion: str | None = Field(
        default=None, max_length=20_000, description="What to put in the place of these lines, exactly."
    )


class Review(Arguments):
    """A review as a whole."""

    body: str = Field(min_length=1, max_length=20_000, description="What you think of it as a whole.")
    verdict: Literal["comment", "request_changes"] = "comment"
    comments: tuple[ReviewComment, ...] = Field(default=(), max_length=50)


class Logins(Arguments):
    """People."""

    logins: tuple[str, ...] = Field(min_length=1, max_length=10)


class Checkout(Arguments):
    """Where to clone to."""

    directory: str = Field(default="repo", pattern=r"^[A-Za-z0-9_][A-Za-z0-9._-]{0,60}$")


class Pull(Arguments):
    """A pull request."""

    title: str = Field(min_length=1, max_length=256)
    changed: str = Field(min_length=1, max_length=30_000, description="What changed.")
    why: str = Field(min_length=1, max_length=10_000, description="Why it changed, and why so.")
    tested: str = Field(
        min_length=1,
        max_length=10_000,
        description="How it was tested and what came of it, or that it was not.",
    )
    uncertain: str = Field(
        min_length=1, max_length=5_000, description="What is uncertain or left open, or that nothing is."
    )
    branch: str = Field(default="", max_length=200, description="Default: this conversation's own branch.")
