"""Commands that search for files and text by the sandbox's own `find` and `grep`, so that every limit applies."""

from __future__ import annotations

import shlex

from gofer_sandbox.errors import InvalidInput

_CUT_SHORT = 141
"""The exit code of a program that ended because nobody read its output any more."""
_SKIPPED = (".git", "node_modules", "__pycache__", ".venv")


def find_command(home: str, name: str, path: str, limit: int) -> str:
    """Print the paths of files whose name matches a pattern, and what could not be looked at."""
    _check(name=name, path=path)
    pruned = " -o ".join(f"-name {shlex.quote(skipped)}" for skipped in _SKIPPED)
    where = shlex.quote(_not_an_option(path))
    return _at(
        home,
        f"command find {where} \\( {pruned} \\) -prune -o -name {shlex.quote(name)} -print 2>&1"
        f" | command head -n {_limit(limit)}",
    )


def grep_command(home: str, pattern: str, path: str, limit: int, ignore_case: bool = False) -> str:
    """Print the lines that match a pattern, with their files and numbers; binary files are left out."""
    _check(pattern=pattern, path=path)
    excluded = " ".join(f"--exclude-dir={shlex.quote(skipped)}" for skipped in _SKIPPED)
    flags = "-rnIEi" if ignore_case else "-rnIE"
    return _at(
        home,
        f"command grep {flags} {excluded} -e {shlex.quote(pattern)} -- {shlex.quote(path)} 2>&1"
        f" | command cut -c 1-1000 | command head -n {_limit(limit)}",
    )


def _at(home: str, command: str) -> str:
    """Run a pipeline in the workspace; the shell stays where it is. The exit code is the first program's, or 0 when it
    was cut short because there is enough."""
    return (
        f"(\\builtin set +e +o pipefail; \\builtin cd -- {shlex.quote(home)} || \\builtin exit; {command}\n"
        f"\\builtin set -- ${{PIPESTATUS[0]}}; \\builtin exit $(($1 == {_CUT_SHORT} ? 0 : $1)))"
    )


def _limit(limit: object) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 0 < limit <= 10_000:
        raise InvalidInput(f"limit must be between 1 and 10000, not {limit!r}")
    return limit


def _check(**texts: object) -> None:
    for name, text in texts.items():
        if not isinstance(text, str) or not text or "\0" in text:
            raise InvalidInput(f"{name} must be text that is not empty and has no NUL in it")


def _not_an_option(path: str) -> str:
    return f"./{path}" if path.startswith(("-", "(", "!")) else path
