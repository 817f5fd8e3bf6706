"""Reading what must not be on a command line: from a file, from stdin, or from somebody at a terminal."""

from __future__ import annotations

import os
import stat
import sys

from gofer.cli.exit_codes import USAGE, CommandFailed

MAX_INPUT = 1024 * 1024


def read_secret(path: str) -> str:
    """A secret's value from a file, or from stdin for `-`; one line break at its end is not part of it."""
    try:
        value = _bytes_of(path).decode("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise CommandFailed(f"{'stdin' if path == '-' else path} cannot be read: {reason}.", USAGE) from None
    return _not_empty(value.removesuffix("\n").removesuffix("\r"))


def read_text(path: str, most: int) -> str:
    """The text of a file of at most so many bytes, or of stdin for `-`. What is no regular file is refused: a pipe may
    never end."""
    name = "stdin" if path == "-" else path
    try:
        value = _bytes_of(path, most + 1, regular=True)
        if len(value) > most:
            raise CommandFailed(f"{name} has more than {most} bytes. Split it.", USAGE)
        return value.decode("utf-8")
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or "it is not text in UTF-8"
        raise CommandFailed(f"{name} cannot be read: {reason}.", USAGE) from None


def _not_empty(value: str) -> str:
    if not value.strip():
        raise CommandFailed("The secret is empty.", USAGE)
    return value


def _bytes_of(path: str, most: int = MAX_INPUT, *, regular: bool = False) -> bytes:
    if path == "-":
        return sys.stdin.buffer.read(most)
    # Opening a pipe that nobody writes to would wait.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | (os.O_NONBLOCK if regular else 0))
    with open(descriptor, "rb") as file:
        if regular and not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise CommandFailed(
                f"{path} is no regular file. To read from a pipe, give - and pipe it in.", USAGE
            )
        return file.read(most)


def may_prompt() -> bool:
    """Whether somebody is there to answer."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def prompt_secret(label: str) -> str:
    """Ask for a secret without showing it."""
    from getpass import getpass

    return _not_empty(getpass(f"{label}: "))


def confirm(question: str) -> None:
    """Ask before something that cannot be undone. Without a terminal, `--yes` is required."""
    if not may_prompt():
        raise CommandFailed(f"{question} Say --yes to do it without being asked.", USAGE)
    print(f"{question} [y/N] ", end="", file=sys.stderr, flush=True)
    if sys.stdin.readline().strip().lower() not in ("y", "yes"):
        raise CommandFailed("Nothing was changed.", 1)
