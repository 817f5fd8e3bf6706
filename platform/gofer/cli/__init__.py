"""The command line: nouns and verbs, one file per noun, nothing heavy imported before it is needed."""

from __future__ import annotations

import gc
import os
import sys
from typing import TYPE_CHECKING

from gofer.cli.exit_codes import BROKEN_PIPE, FAILED, INTERRUPTED, CommandFailed

if TYPE_CHECKING:
    from typer.exceptions import TyperException

__all__ = ["main"]

OBJECTS_BETWEEN_COLLECTIONS = 50_000


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns its exit code. An error is one line on stderr, never a traceback."""
    # What loading modules makes stays: to look through it for garbage again and again is a tenth of a start.
    gc.set_threshold(OBJECTS_BETWEEN_COLLECTIONS)
    _load_structlog()
    from typer.exceptions import Abort, TyperException

    from gofer.cli.commands import app_for
    from gofer.errors import GoferError

    try:
        code = app_for(sys.argv[1:] if arguments is None else arguments)(arguments, standalone_mode=False)
        sys.stdout.flush()
    except CommandFailed as error:
        return _say(str(error), error.code)
    except GoferError as error:
        return _say(str(error), CommandFailed.of(error).code)
    except TyperException as error:
        return _say(_usage(error), error.exit_code)
    except (KeyboardInterrupt, Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has gone; the interpreter must not stumble over it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    except OSError as error:
        # A folder that may not be entered, a disk that is full: whatever the system refuses, it says why.
        what = f"{error.filename}: " if error.filename else ""
        return _say(f"{what}{error.strerror or error}.", FAILED)
    return int(code or 0)


def _load_structlog() -> None:
    """Load structlog without what it would load beside it for tracebacks that Gofer writes itself: 5 MiB."""
    hidden = {"rich", "greenlet"} - sys.modules.keys()
    sys.modules.update(dict.fromkeys(hidden))  # type: ignore[arg-type] # None says that there is no such module
    try:
        import structlog  # noqa: F401
    finally:
        for name in hidden:
            del sys.modules[name]


def _say(message: str, code: int) -> int:
    if message.startswith("Usage:"):
        print(message, file=sys.stderr)
    else:
        print("gofer:", " ".join(message.split()), file=sys.stderr)
    return code


def _usage(error: TyperException) -> str:
    message = error.format_message()
    context = getattr(error, "ctx", None)
    if context is None or message.startswith("Usage:"):
        return message
    ended = message if message.endswith(("?", "!")) else f"{message.rstrip('.')}."
    return f"{ended} Try: {context.command_path} --help"
