"""The command line: nouns and verbs, one file per noun, nothing heavy imported before it is needed."""

from __future__ import annotations

import os
import sys

from gofer.cli.exits import BROKEN_PIPE, INTERRUPTED, Failed

__all__ = ["main"]


def main(arguments: list[str] | None = None) -> int:
    """Run a command; returns its exit code. An error is one line on stderr, never a traceback."""
    from typer.exceptions import Abort, TyperException

    from gofer.cli.commands import app
    from gofer.errors import GoferError

    try:
        code = app(arguments, standalone_mode=False)
        sys.stdout.flush()
    except Failed as error:
        return _say(str(error), error.code)
    except GoferError as error:
        return _say(str(error), Failed.of(error).code)
    except TyperException as error:
        return _say(_usage(error), error.exit_code)
    except (KeyboardInterrupt, Abort):
        return INTERRUPTED
    except BrokenPipeError:
        # Whoever read us has gone; the interpreter must not stumble over it again at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE
    return int(code or 0)


def _say(message: str, code: int) -> int:
    line = " ".join(message.split())
    print(line if line.startswith("Usage:") else f"gofer: {line}", file=sys.stderr)
    return code


def _usage(error: Exception) -> str:
    message = str(getattr(error, "format_message", error.__str__)())
    context = getattr(error, "ctx", None)
    return f"{message} Try: {context.command_path} --help" if context is not None else message
