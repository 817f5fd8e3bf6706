"""What a fetch sees and asks for: the refs that strangers can make are hidden, and so are their commits.

On a forge anybody can make refs of a repository by opening a pull request, and a server may hand out any commit that
is asked for by its number. So the proxy leaves these refs out of what is advertised (git's protocols 0, 1 and 2),
and lets a fetch want only what was advertised, or what whoever made the rule vouches for.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Mapping
from dataclasses import dataclass, field

from gofer_sandbox.network.errors import Refused, Unanswered
from gofer_sandbox.network.git import packet
from gofer_sandbox.network.rules import GitAccess

HIDDEN = (b"refs/pull/", b"refs/merge-requests/")
"""Where forges keep what anybody may propose."""
MAX_REQUEST = 8 * 1024 * 1024
MAX_UNPACKED = 32 * 1024 * 1024
MAX_KNOWN = 1_000_000
RESULT = "application/x-git-upload-pack-result"

_OBJECT = rb"(?:[0-9a-f]{64}|[0-9a-f]{40})"
_REF = re.compile(rb"(" + _OBJECT + rb") ([^\s\0]+)([^\0\n]*)(\0[^\n]*)?\n?")
_WANT = re.compile(rb"want (" + _OBJECT + rb")(?: .*)?", re.S)
_PEELED = re.compile(rb" peeled:(" + _OBJECT + rb")")
_COMMANDS = (b"ls-refs", b"fetch")


@dataclass(eq=False, slots=True)
class Known:
    """The objects that were advertised by the names of visible refs."""

    objects: set[bytes] = field(default_factory=set)

    def add(self, *objects: bytes) -> None:
        if len(self.objects) < MAX_KNOWN:
            self.objects.update(objects)


class RefFilter:
    """Leaves hidden refs out of a list of refs as it passes, and remembers what the others name."""

    def __init__(self, known: Known) -> None:
        self._known = known
        self._held = b""
        self._capabilities = b""
        """Of a first ref that is hidden; they go with the next."""
        self._nothing = b""
        """What the first line of a list says that names no ref."""

    def feed(self, data: bytes) -> bytes:
        """What can be passed on; Refused where it is no list of refs."""
        self._held += data
        passed, at = [], 0
        while len(prefix := self._held[at : at + 4]) == 4:
            length = _length(prefix)
            end = at + max(4, length)
            if len(self._held) < end:
                break
            passed.append(self._flushed(prefix) if length < 4 else self._line(self._held[at + 4 : end]))
            at = end
        self._held = self._held[at:]
        return b"".join(passed)

    def rest(self) -> bytes:
        """Nothing is left at the end of a list that is whole."""
        if self._held:
            raise _unreadable()
        return b""

    def _line(self, line: bytes) -> bytes:
        found = _REF.fullmatch(line)
        if found is None:
            return packet(_without_filter(line))
        name, ref, attributes, capabilities = found.groups()
        capabilities = _without_filter(capabilities or self._capabilities)
        if ref.startswith(HIDDEN):
            self._capabilities = capabilities
            self._nothing = b"0" * len(name) + b" capabilities^{}"
            return b""
        self._known.add(name, *_PEELED.findall(attributes))
        self._capabilities = b""
        return packet(name + b" " + ref + attributes + capabilities + b"\n")

    def _flushed(self, mark: bytes) -> bytes:
        if not self._capabilities:
            return mark
        line, self._capabilities = self._nothing + self._capabilities + b"\n", b""
        return packet(line) + mark


def _without_filter(line: bytes) -> bytes:
    """Capabilities without partial clones, which later want files by their numbers: git then fetches all of them."""
    if not line.startswith((b"fetch=", b"\0")):
        return line
    return re.sub(rb"(?<=[ =\0])filter(?= |\n|$) ?", b"", line)


@dataclass(frozen=True, slots=True)
class FetchRequest:
    """What one request of a fetch asks for."""

    lists_refs: bool
    wants: tuple[bytes, ...]
    refs: tuple[bytes, ...]

    @classmethod
    def parse(cls, data: bytes) -> FetchRequest:
        """Read a whole request; Refused where it is none that this proxy understands."""
        lines = _lines(data)
        commands = [line.removeprefix(b"command=") for line in lines if line.startswith(b"command=")]
        if len(commands) > 1 or any(command not in _COMMANDS for command in commands):
            raise _malformed("a command that is not ls-refs or fetch")
        wants = []
        for line in lines:
            if line.startswith(b"want "):
                found = _WANT.fullmatch(line)
                if found is None:
                    raise _malformed("a line that is not `want object`")
                wants.append(found[1])
        refs = [line.removeprefix(b"want-ref ") for line in lines if line.startswith(b"want-ref ")]
        return cls(commands == [b"ls-refs"], tuple(wants), tuple(refs))


async def check(asked: FetchRequest, access: GitAccess, known: Known) -> None:
    """Raise Refused where a fetch wants what it may not see."""
    hidden = next((ref for ref in asked.refs if ref.startswith(HIDDEN)), None)
    if hidden is not None:
        raise _refused(f"{hidden.decode(errors='replace')} is what strangers propose, and is not fetched")
    unnamed = [name.decode() for name in dict.fromkeys(asked.wants) if name not in known.objects]
    if not unnamed:
        return
    reasons: Mapping[str, str] = dict.fromkeys(unnamed, "no branch or tag names it")
    if access.commit_objections is not None:
        try:
            reasons = await access.commit_objections(unnamed)
        except Unanswered as silence:
            reasons = dict.fromkeys(unnamed, str(silence))
    for name, reason in reasons.items():
        raise _refused(f"{name} may not be fetched: {' '.join(reason.split())}")


def unpacked(body: bytes, encoding: bytes) -> bytes:
    """A request's body as git reads it; Refused for what cannot be read in one way only."""
    if encoding in (b"", b"identity"):
        return body
    if encoding not in (b"gzip", b"x-gzip"):
        raise Refused("a fetch in this compression cannot be checked", status=415)
    unpacking = zlib.decompressobj(31)
    try:
        data = unpacking.decompress(body, MAX_UNPACKED)
    except zlib.error:
        raise _malformed("its compression is broken") from None
    if not unpacking.eof or unpacking.unused_data:
        raise _malformed("its compression is broken, or it is too long")
    return data


def _lines(data: bytes) -> list[bytes]:
    lines, at = [], 0
    while at < len(data):
        length = _length(data[at : at + 4])
        end = at + max(4, length)
        if end > len(data) or length == 3:
            raise _malformed("a packet that is cut off")
        if length >= 4:
            lines.append(data[at + 4 : end].removesuffix(b"\n"))
        at = end
    return lines


def _length(prefix: bytes) -> int:
    if not re.fullmatch(rb"[0-9a-f]{4}", prefix):
        raise _malformed("a packet's length is not four lower-case hex digits")
    return int(prefix, 16)


def _refused(reason: str) -> Refused:
    return Refused(reason, report=packet(b"ERR " + reason.encode()), report_type=RESULT)


def _malformed(what: str) -> Refused:
    return Refused(f"the fetch was not understood: {what}", status=400)


def _unreadable() -> Refused:
    return Refused("the upstream's list of refs ends too soon", status=502)
