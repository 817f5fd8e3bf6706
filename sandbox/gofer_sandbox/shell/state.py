"""From a snapshot the shell left to the state the next shell begins with.

A snapshot was written inside, so it may hold anything: it is only ever taken apart here, and only evaluated
inside again.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gofer_sandbox.shell.frames import SLOTS

MAXIMUM = 4 * 1024 * 1024
ROOM = len(SLOTS) * MAXIMUM
"""The size of the tmpfs it is written to."""

_VALUE = rb"""(?:[^"'$\n]|"(?:\\.|[^"\\])*"|\$'(?:\\.|[^'\\])*'|'[^']*'|\$)*"""
_DECLARATION = re.compile(rb"declare -\S+ (\w+)(?:=" + _VALUE + rb")?\n", re.S)

# bash sets these itself, or they would break the next shell (a prompt command, a time-out, a history file).
_NOT_RESTORED = re.compile(
    rb"(?:BASH\w*|EUID|PPID|SHELLOPTS|UID|GROUPS|DIRSTACK|FUNCNAME|PIPESTATUS|_|LINENO|RANDOM|SRANDOM|SECONDS"
    rb"|EPOCH\w*|HIST\w*|COMP_\w*|SHLVL|PS[0124]|PROMPT_COMMAND|TMOUT|MAILCHECK|HOSTNAME|HOSTTYPE|MACHTYPE"
    rb"|OSTYPE|COLUMNS|LINES|PWD|OLDPWD|FUNCNEST)"
)
_OPTIONS_NOT_RESTORED = re.compile(
    rb"set [-+]o (?:history|histexpand|monitor|noexec|onecmd|privileged|emacs|vi)$"
)


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What `declare`, `alias`, `shopt`, `umask` and `set` said, and where the shell stood."""

    cwd: bytes
    variables: bytes
    functions: bytes
    aliases: bytes
    settings: bytes
    options: bytes

    @classmethod
    def parse(cls, data: bytes) -> Snapshot | None:
        """A whole snapshot, or None for anything else (a full tmpfs, a shell killed half-way, a forgery)."""
        parts = data.split(b"\0")
        if len(parts) != 7 or not parts[0].startswith(b"S") or parts[6] != b"E":
            return None
        return cls(parts[0][1:], *parts[1:6])

    def state(self, home: str) -> bytes:
        """A script that brings all of it back, but for the options, which must come last."""
        declarations = list(_DECLARATION.finditer(self.variables))
        cwd, fallback = _quoted(self.cwd), _quoted(home.encode())
        return b"".join(
            [
                self.settings,
                *(m.group(0) for m in declarations if _wanted(m.group(1))),
                self.functions,
                self.aliases,
                b"\\builtin cd -- %s 2>/dev/null || \\builtin cd -- %s\n" % (cwd, fallback),
                *(b"\\builtin " + m.group(0) for m in declarations if m.group(1) == b"OLDPWD"),
            ]
        )

    def option_lines(self) -> bytes:
        """A script that sets the options again."""
        lines = (line for line in self.options.splitlines() if not _OPTIONS_NOT_RESTORED.match(line))
        return b"".join(b"\\builtin " + line + b"\n" for line in lines if line.startswith(b"set "))


def _wanted(name: bytes) -> bool:
    return _NOT_RESTORED.fullmatch(name) is None


def _quoted(text: bytes) -> bytes:
    return b"'" + text.replace(b"'", b"'\\''") + b"'"
