"""From a snapshot the shell left to the state the next shell begins with.

A snapshot was written inside, so it may hold anything: it is only ever taken apart here, and only evaluated
inside again. How much of it is looked at is bounded, in bytes, in variables and in processor time, so that no snapshot
holds the server's loop for more than 5 ms.
"""

from __future__ import annotations

import math
import re
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace

from gofer_sandbox.shell.frames import Decoder, Snapped

MAXIMUM = 64 * 1024
"""What is kept of one."""

_VALUE = rb"""(?:[^"'$\n]++|"(?:[^"\\]++|\\.)*+"|\$'(?:[^'\\]++|\\.)*+'|'[^']*+'|\$)*+"""
_DECLARATION = re.compile(rb"declare -(\S+) (\w+)(?:=" + _VALUE + rb")?\n", re.S)

_ALL = "functions", "aliases", "positional parameters", "further variables"
_ALL_FUNCTIONS, _ALL_ALIASES, _ALL_ARGUMENTS, _MORE_VARIABLES = _ALL
_NAMED = 10
_DECLARATIONS = 1000
"""Variables that are looked at: a shell has about a hundred, and each costs the server's loop two microseconds."""
_DEADLINE = 0.004
"""Seconds of the processor's after which the rest of a snapshot's variables counts as too much. Of the processor's: a
busy machine must not cost a shell its state."""
_ODD = 4
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
_PASSING_SIZE = 8192
_PASSING = {
    "the job table": re.compile(rb"^\d+$", re.M),
    "the directory stack": re.compile(rb"\Adirs more"),
    "disabled builtins": re.compile(rb"^enable -n ", re.M),
    "traps": re.compile(rb"^trap -- (?!''|'\{ (?:BASH_I=e; )?\\builtin )", re.M),
    "open descriptors": re.compile(rb"(?:^/proc/self/fd/\d+\n){7}|^/proc/self/fd/[4-9]$", re.M),
}
"""What a shell has that is not brought back. A signal that is ignored is left out: it may be so since before the server
was started. Six descriptors are the shell's own, two of them for asking: the lowest that is free, and one of those
beyond 9 that amid a command it has more of."""
_SAVED = re.compile(rb"^/proc/self/fd/\d\d+\n", re.M)
_UMASK = re.compile(rb"[0-7]{1,4}")


@dataclass(frozen=True, slots=True)
class Snapshot:
    """What `declare`, `alias`, `umask` and `ulimit` said, which options were set, and where the shell stood."""

    cwd: bytes = b""
    options: bytes = b""
    """SHELLOPTS."""
    settings: bytes = b""
    """BASHOPTS and, on a line of its own, the umask."""
    limits: bytes = b""
    """Not brought back, lest a shell be unusable for ever; told when a shell that had others is gone."""
    arguments: bytes = b""
    """The positional parameters, quoted."""
    passing: bytes = b""
    """What `jobs`, `trap` and the like said: not brought back, but told."""
    aliases: bytes = b""
    functions: bytes = b""
    variables: bytes = b""
    dropped: tuple[str, ...] = ()
    """What there was no room for, in words."""
    after: int = 0
    """The command after which it was taken."""

    @classmethod
    def read(cls, data: bytes | None) -> Snapshot | None:
        """From what `data` gave, or None for anything else."""
        for frame in Decoder().feed(data or b""):
            if isinstance(frame, Snapped) and not frame.cut:
                return _whole(frame)
        return None

    def data(self) -> bytes:
        """As the shell would have written it."""
        names = "\n".join(self.dropped).encode()
        parts = (b"Ui" + self.cwd, b"O" + self.options, b"T" + self.settings, b"L" + self.limits)
        ours = (b"P" + self.arguments, b"W" + self.passing)
        rest = (b"A" + self.aliases, b"F" + self.functions, b"V" + self.variables, b"N" + names)
        return b"\0".join((b"", *parts, *ours, *rest, b"E%d" % self.after, b""))

    @property
    def size(self) -> int:
        """How much of what is bounded it holds."""
        return len(self.arguments) + len(self.aliases) + len(self.functions) + len(self.variables)

    def lost_with_shell(self) -> list[str]:
        """What the shell had that no other gets, in words."""
        return [words for words, found in _PASSING.items() if found.search(self.passing)]

    def state(self, home: str) -> bytes:
        """A script that brings all of it back, but for the options, which must come last."""
        declarations = list(_declarations(self.variables))
        cwd, fallback = _quoted(self.cwd), _quoted(home.encode())
        return b"".join(
            [
                self._setting_lines(),
                b"\\builtin set -- %b\n" % self.arguments if self.arguments else b"",
                *(_declaration(m) for m in declarations if not _NOT_RESTORED.fullmatch(m.group(2))),
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


def _quoted(text: bytes) -> bytes:
    return b"'" + text.replace(b"'", b"'\\''") + b"'"


def _declaration(found: re.Match[bytes]) -> bytes:
    """A variable as it was, but that a shell can be repaired."""
    flags, name = found.group(1, 2)
    if name not in _WRITABLE:
        return found.group(0)
    return found.group(0).replace(b"-" + flags, b"-" + (flags.replace(b"r", b"") or b"-"), 1)


def _whole(frame: Snapped) -> Snapshot:
    found = frame.sections
    cwd, passing = found.get(b"U", b""), found.get(b"W", b"")
    options, settings, limits, arguments, aliases, functions, variables = (
        found.get(letter, b"") for letter in (b"O", b"T", b"L", b"P", b"A", b"F", b"V")
    )
    passing = (_SAVED.sub(b"", passing) if cwd[:1] == b"e" else passing)[:_PASSING_SIZE]
    names = found.get(b"N", b"").decode("utf-8", "replace").split("\n")
    dropped = tuple("".join(filter(str.isprintable, name))[:80] for name in names if name)
    parts = (cwd[1:], options, settings, limits, arguments, passing, aliases, functions, variables)
    return Snapshot(*parts, dropped=dropped, after=frame.after)


def kept(frame: Snapped, before: Snapshot | None) -> Snapshot | None:
    """What is kept of a snapshot that may be larger than that; None when not even its beginning is there.

    What is largest is left out and named. What was cut off is taken from the snapshot before.
    """
    older, found = before or Snapshot(), _whole(frame)
    if b"P" not in frame.sections or b"P" in frame.cut:
        found = replace(found, arguments=older.arguments)
    many = found.variables.count(b"\ndeclare -") >= _DECLARATIONS
    if not frame.cut and not many and found.size <= MAXIMUM:
        return replace(found, dropped=_few(found.dropped))
    if frame.cut and b"A" in frame.cut:
        return None
    dropped = list(found.dropped)
    until = time.thread_time() + _DEADLINE
    variables, last = _declared(found.variables, bool(frame.cut), until)
    if b"P" in frame.cut:
        dropped.append(_ALL_ARGUMENTS)
    if b"F" in frame.cut:
        found = replace(found, functions=older.functions)
        dropped.append(_ALL_FUNCTIONS)
    if frame.cut:
        variables = _declared(older.variables, False, until)[0] | variables
    if frame.cut or many or time.thread_time() > until:
        dropped += [last, _MORE_VARIABLES] if last else [_MORE_VARIABLES]
    return _reduced(replace(found, variables=b""), variables, dropped)


def _declarations(variables: bytes, until: float = math.inf) -> Iterator[re.Match[bytes]]:
    """Each that is whole. To see that one is not can take a look at all that follows, so a forger gets few."""
    start = odd = count = 0
    while start < len(variables) and odd < _ODD and count < _DECLARATIONS:
        if count % 32 == 0 and time.thread_time() > until:
            return
        count += 1
        found = _DECLARATION.match(variables, start)
        if found:
            yield found
            start = found.end()
        else:
            odd += 1
            start = variables.find(b"\n", start) + 1 or len(variables)


def _declared(variables: bytes, cut: bool, until: float) -> tuple[dict[bytes, bytes], str]:
    """Each variable's declaration; of text that was cut off, only up to there, and which variable it ends in."""
    found: dict[bytes, bytes] = {}
    end = 0
    for match in _declarations(variables, until):
        if cut and match.start() != end:
            break
        end = match.end()
        found[match.group(2)] = match.group(0)
    last = re.match(rb"declare -\S+ (\w+)=", variables[end : end + 200]) if cut else None
    return found, last.group(1).decode()[:80] if last else ""


def _reduced(rest: Snapshot, variables: dict[bytes, bytes], dropped: list[str]) -> Snapshot:
    """Leave out the largest until the rest has room."""
    if rest.size > MAXIMUM:
        rest, dropped = replace(rest, functions=b""), [_ALL_FUNCTIONS, *dropped]
    if rest.size > MAXIMUM:
        rest, dropped = replace(rest, aliases=b""), [_ALL_ALIASES, *dropped]
    if rest.size > MAXIMUM:
        rest, dropped = replace(rest, arguments=b""), [_ALL_ARGUMENTS, *dropped]
    room = MAXIMUM - rest.size - sum(map(len, variables.values()))
    names = []
    for name in sorted(variables, key=lambda name: -len(variables[name])):
        if room >= 0:
            break
        room += len(variables.pop(name))
        names.append(name.decode()[:80])
    return replace(rest, variables=b"".join(variables.values()), dropped=_few((*names, *dropped)))


def _few(names: tuple[str, ...]) -> tuple[str, ...]:
    """As many as are worth naming."""
    plain = [name for name in dict.fromkeys(names) if name not in _ALL]
    words = [name for name in dict.fromkeys(names) if name not in plain]
    more = [_MORE_VARIABLES] if len(plain) > _NAMED and _MORE_VARIABLES not in words else []
    return (*plain[:_NAMED], *words, *more)
