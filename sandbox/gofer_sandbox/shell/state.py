"""From a snapshot the shell left to the state the next shell begins with.

A snapshot was written inside, so it may hold anything: it is only ever taken apart here, and only evaluated
inside again.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gofer_sandbox.shell.frames import SLOTS

MAXIMUM = 4 * 1024 * 1024
"""What is kept of one."""
ROOM = len(SLOTS) * MAXIMUM
"""The size of the tmpfs it is written to."""

_VALUE = rb"""(?:[^"'$\n]++|"(?:[^"\\]++|\\.)*+"|\$'(?:[^'\\]++|\\.)*+'|'[^']*+'|\$)*+"""
_DECLARATION = re.compile(rb"declare -(\S+) (\w+)(?:=" + _VALUE + rb")?\n", re.S)

_ALL_FUNCTIONS, _MORE_VARIABLES = "functions", "further variables"
_NAMED = 10
_ODD = 8
"""Lines that are no declaration: bash writes none."""

# bash sets these itself, or they would break the next shell (a prompt command, a time-out, a history file).
_NOT_RESTORED = re.compile(
    rb"(?:BASH\w*|EUID|PPID|SHELLOPTS|UID|GROUPS|DIRSTACK|FUNCNAME|PIPESTATUS|_|LINENO|RANDOM|SRANDOM|SECONDS"
    rb"|EPOCH\w*|HIST\w*|COMP_\w*|SHLVL|PS[0124]|PROMPT_COMMAND|TMOUT|MAILCHECK|HOSTNAME|HOSTTYPE|MACHTYPE"
    rb"|OSTYPE|COLUMNS|LINES|PWD|OLDPWD|FUNCNEST)"
)
# Read-only, and wrong, they would leave every later shell as unusable.
_WRITABLE = (b"PATH", b"HOME", b"IFS", b"OLDPWD")
_OPTIONS_SIZE = 4096
_OPTION = re.compile(rb"[a-z][a-z0-9_-]*")
_OPTIONS_NOT_RESTORED = {
    *(b"history", b"histexpand", b"monitor", b"noexec", b"onecmd", b"privileged", b"emacs", b"vi")
}
_SET_AT_FIRST = (b"braceexpand", b"hashall", b"interactive-comments")
"""Of those that are restored, what every shell begins with."""
_UMASK = re.compile(rb"[0-7]{1,4}")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What `declare`, `alias` and `umask` said, which options were set, and where the shell stood."""

    cwd: bytes
    options: bytes
    """SHELLOPTS."""
    settings: bytes
    """BASHOPTS and, on a line of its own, the umask."""
    aliases: bytes
    functions: bytes
    variables: bytes
    dropped: tuple[str, ...] = ()
    """What there was no room for, in words."""

    @classmethod
    def parse(cls, data: bytes) -> Snapshot | None:
        """A whole snapshot, or None for anything else (a full tmpfs, a shell killed half-way, a forgery)."""
        parts = data.split(b"\0")
        if len(parts) != 7 or not parts[0].startswith(b"U") or not parts[6].startswith(b"E"):
            return None
        cwd, options, settings, aliases, functions, variables, end = parts
        return cls(cwd[1:], options, settings, aliases, functions, variables, _words(end[1:]))

    def data(self) -> bytes:
        """What `parse` reads."""
        parts = (self.cwd, self.options, self.settings, self.aliases, self.functions, self.variables)
        return b"U" + b"\0".join(parts) + b"\0E" + "\n".join(self.dropped).encode()

    def state(self, home: str) -> bytes:
        """A script that brings all of it back, but for the options, which must come last."""
        declarations = list(_declarations(self.variables))
        cwd, fallback = _quoted(self.cwd), _quoted(home.encode())
        return b"".join(
            [
                self._setting_lines(),
                *(_declaration(m) for m in declarations if _wanted(m.group(2))),
                self.functions,
                self.aliases,
                b"\\builtin cd -- %s 2>/dev/null || \\builtin cd -- %s\n" % (cwd, fallback),
                *(b"\\builtin " + _declaration(m) for m in declarations if m.group(2) == b"OLDPWD"),
            ]
        )

    def _setting_lines(self) -> bytes:
        """What a shell begins with goes first, for it may have been unset since."""
        shopt, _, mask = self.settings.partition(b"\n")
        mask = mask.strip()
        return b"".join(
            [
                b"shopt -u ${BASHOPTS//:/ } 2>/dev/null\n",
                b"shopt -s %b 2>/dev/null\n" % b" ".join(_options(shopt)),
                b"umask %b\n" % mask if _UMASK.fullmatch(mask) else b"",
            ]
        )

    def option_lines(self) -> bytes:
        """A script that sets the options again."""
        wanted = [name for name in _options(self.options) if name not in _OPTIONS_NOT_RESTORED]
        unset = [name for name in _SET_AT_FIRST if name not in wanted]
        lines = [*(b"set +o " + name for name in unset), *(b"set -o " + name for name in wanted)]
        return b"".join(b"\\builtin " + line + b"\n" for line in lines)


def _options(listed: bytes) -> list[bytes]:
    """The names in a list as bash keeps it, which has not so many."""
    return [name for name in listed[:_OPTIONS_SIZE].split(b":") if _OPTION.fullmatch(name)]


def _wanted(name: bytes) -> bool:
    return _NOT_RESTORED.fullmatch(name) is None


def _quoted(text: bytes) -> bytes:
    return b"'" + text.replace(b"'", b"'\\''") + b"'"


def _declaration(found: re.Match[bytes]) -> bytes:
    """A variable as it was, but that a shell can be repaired."""
    flags, name = found.group(1, 2)
    if name not in _WRITABLE:
        return found.group(0)
    return found.group(0).replace(b"-" + flags, b"-" + (flags.replace(b"r", b"") or b"-"), 1)


def _words(data: bytes) -> tuple[str, ...]:
    """What was dropped; whoever is inside may have written it, so it is held to something printable."""
    if not data:
        return ()
    lines = data.decode("utf-8", "replace").splitlines()[: _NAMED + 2]
    return tuple("".join(filter(str.isprintable, line))[:80] for line in lines)


def fitting(data: bytes, before: bytes | None) -> bytes | None:
    """A snapshot that is whole and not too large, made of one that may be neither; None when it is none at all.

    What is largest is left out and named. What a full tmpfs cut off is taken from the snapshot before.
    """
    if len(data) <= MAXIMUM and Snapshot.parse(data):
        return data
    parts = data.split(b"\0")
    whole = parts[:-1]  # the last was cut off, or is the end's mark
    if not data.startswith(b"U") or not 5 <= len(parts) <= 7:
        return None
    older = Snapshot.parse(before or b"") or Snapshot(b"", b"", b"", b"", b"", b"")
    functions = whole[4] if len(whole) > 4 else older.functions
    dropped = [] if len(whole) > 4 else [_ALL_FUNCTIONS]
    cut = len(whole) < 6
    found = _declared(parts[5] if len(parts) > 5 else b"", cut)
    if cut:
        dropped.append(_MORE_VARIABLES)
        found = _declared(older.variables, False) | found
    cwd, options, settings, aliases = whole[:4]
    return _reduced(Snapshot(cwd[1:], options, settings, aliases, functions, b""), found, dropped)


def _declarations(variables: bytes) -> Iterator[re.Match[bytes]]:
    """Each that is whole. To see that one is not can take a look at all that follows, so a forger gets few."""
    start = odd = 0
    while start < len(variables) and odd < _ODD:
        found = _DECLARATION.match(variables, start)
        if found:
            yield found
            start = found.end()
        else:
            odd += 1
            start = variables.find(b"\n", start) + 1 or len(variables)


def _declared(variables: bytes, cut: bool) -> dict[bytes, bytes]:
    """Each variable's declaration; of text that was cut off, only up to there."""
    found: dict[bytes, bytes] = {}
    end = 0
    for match in _declarations(variables):
        if cut and match.start() != end:
            break
        end = match.end()
        found[match.group(2)] = match.group(0)
    return found


def _reduced(rest: Snapshot, variables: dict[bytes, bytes], dropped: list[str]) -> bytes | None:
    """Leave out the largest until the rest has room."""
    if len(rest.data()) > MAXIMUM:
        rest, dropped = replace(rest, functions=b""), [_ALL_FUNCTIONS, *dropped]
    room = MAXIMUM - len(rest.data()) - sum(map(len, variables.values()))
    names = []
    for name in sorted(variables, key=lambda name: -len(variables[name])):
        if room >= 0:
            break
        room += len(variables.pop(name))
        names.append(name.decode()[:80])
    more = [_MORE_VARIABLES] if len(names) > _NAMED and _MORE_VARIABLES not in dropped else []
    told = (*names[:_NAMED], *dropped, *more)
    whole = replace(rest, variables=b"".join(variables.values()), dropped=told).data()
    return whole if Snapshot.parse(whole) else None
