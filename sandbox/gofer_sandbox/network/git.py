"""What git's pushes and fetches ask for, and whether that is allowed.

A push (git-receive-pack) is a list of pkt-lines, `<old> <new> <ref>` with capabilities after a NUL, ended by
a flush; then the pack. Whatever the upstream's git might read differently is refused: other packet kinds,
signed pushes (whose commands are in a certificate), unusual names.

A fetch sees neither the refs that strangers can make nor their commits. On a forge anybody can make refs of a
repository by opening a pull request, and a server may hand out any commit that is asked for by its number. So the
proxy leaves these refs out of what is advertised (git's protocols 0, 1 and 2), and lets a fetch want only what was
advertised, or what whoever made the rule vouches for.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from gofer_sandbox.network.errors import ProxyRefused, Unanswered
from gofer_sandbox.network.rules import GitAccess, Objections

_MAX_HEAD = 256 * 1024
_MAX_UPDATES = 256
NOTHING = len(b"0000")
"""Length of a push that names no ref."""

_COMMAND = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64}) ([0-9a-f]{40}|[0-9a-f]{64}) ([\x21-\x7e\x80-\xff]+)")
_SHALLOW = re.compile(rb"shallow (?:[0-9a-f]{40}|[0-9a-f]{64})")
_BAD_REF = re.compile(r"\.\.|@\{|//|/\.|\.lock(/|$)|[\x00-\x20\x7f~^:?*\[\\]|[./]$")

HIDDEN = (b"refs/pull/", b"refs/merge-requests/")
"""Where forges keep what anybody may propose."""
MAX_FETCH = 8 * 1024 * 1024
_MAX_UNPACKED = 32 * 1024 * 1024
_MAX_KNOWN = 1_000_000
_FETCH_RESULT = "application/x-git-upload-pack-result"

_OBJECT = rb"(?:[0-9a-f]{64}|[0-9a-f]{40})"
_REF = re.compile(rb"(" + _OBJECT + rb") ([^\s\0]+)([^\0\n]*)(\0[^\n]*)?\n?")
_WANT = re.compile(rb"want (" + _OBJECT + rb")(?: .*)?", re.S)
_PEELED = re.compile(rb" peeled:(" + _OBJECT + rb")")
_COMMANDS = (b"ls-refs", b"fetch")


@dataclass(frozen=True, slots=True)
class Update:
    """One ref that a push would change."""

    new: str
    ref: str

    @property
    def deletes(self) -> bool:
        return set(self.new) == {"0"}


class PushHead:
    """Collects the beginning of a push until its list of updates is complete."""

    def __init__(self) -> None:
        self.data = b""
        """Everything fed so far, to be passed on unchanged."""
        self.updates: list[Update] = []
        self.capabilities: set[str] = set()
        self.complete = False
        self._read = 0

    def feed(self, data: bytes) -> None:
        """Take more of the request; ProxyRefused where it is not a push this proxy understands."""
        self.data += data
        for mark, content, end in _packets(self.data, self._read, "push"):
            self._read = end
            if mark == b"0000":
                self.complete = True
                return
            if not content:
                raise _malformed("a packet kind that a push does not have", "push")
            self._take(content)
        if len(self.data) > _MAX_HEAD:
            raise _malformed("its list of refs is too long", "push")

    def _take(self, packet: bytes) -> None:
        line, _, capabilities = packet.removesuffix(b"\n").partition(b"\0")
        if b"\0" in capabilities:
            raise _malformed("capabilities that git would read only a part of", "push")
        if _SHALLOW.fullmatch(line):
            return
        match = _COMMAND.fullmatch(line)
        if match is None:
            kind = "a signed push" if line.startswith(b"push-cert") else "a line that is not `old new ref`"
            raise _malformed(kind, "push")
        # Git takes `push-options=x` for `push-options`: only the names count.
        words = capabilities.decode("ascii", "replace").split()
        self.capabilities.update(word.partition("=")[0] for word in words)
        self.updates.append(Update(match[2].decode(), match[3].decode(errors="surrogateescape")))
        if len(self.updates) > _MAX_UPDATES:
            raise _malformed(f"more than {_MAX_UPDATES} refs at once", "push")


def objections(push: PushHead, access: GitAccess) -> dict[str, str]:
    """Why each ref of the push is not allowed; empty when the whole push is."""
    if "push-options" in push.capabilities:
        return {update.ref: "push options are not allowed" for update in push.updates}
    found = {update.ref: reason for update in push.updates if (reason := _objection(update, access))}
    if len({update.ref for update in push.updates}) != len(push.updates):
        found |= {update.ref: "the push names a ref twice" for update in push.updates}
    return found


def _objection(update: Update, access: GitAccess) -> str | None:
    if not update.ref.startswith("refs/") or _BAD_REF.search(update.ref) or not update.ref.isascii():
        return "not a plain ref name"
    if update.ref.startswith("refs/tags/") and not access.tags:
        return "tags may not be pushed from this sandbox"
    if update.deletes and not access.deletes:
        return "deleting is not allowed from this sandbox"
    if not any(_matches(pattern, update.ref) for pattern in access.push):
        return f"this sandbox may push only to {', '.join(access.push)}"
    return None


def _matches(pattern: str, ref: str) -> bool:
    return re.fullmatch(".*".join(map(re.escape, pattern.split("*"))), ref) is not None


def rejection(push: PushHead, reasons: dict[str, str]) -> bytes | None:
    """A git answer that names each ref's reason, or None where the client does not read such a report."""
    if not push.capabilities & {"report-status", "report-status-v2"}:
        return None
    lines = [b"unpack ok\n"]
    for update in push.updates:
        reason = reasons.get(update.ref, "refused with the rest of the push")
        lines.append(f"ng {update.ref} {reason}\n".encode(errors="surrogateescape"))
    report = b"".join(map(packet, lines)) + b"0000"
    if "side-band-64k" in push.capabilities:
        pieces = [report[i : i + 60000] for i in range(0, len(report), 60000)]
        return b"".join(packet(b"\1" + piece) for piece in pieces) + b"0000"
    return report


def packet(content: bytes) -> bytes:
    """A pkt-line."""
    return f"{len(content) + 4:04x}".encode() + content


def _malformed(what: str, request: str = "fetch") -> ProxyRefused:
    return ProxyRefused(f"the {request} was not understood: {what}", status=400)


def _packets(data: bytes, at: int = 0, request: str = "fetch") -> Iterator[tuple[bytes, bytes, int]]:
    """The packets that are there whole: the four digits each begins with, its content, and where it ends. Those below
    0004, such as a flush, have none."""
    while len(mark := data[at : at + 4]) == 4:
        if not re.fullmatch(rb"[0-9a-f]{4}", mark):
            raise _malformed("a packet's length is not four lower-case hex digits", request)
        end = at + max(4, int(mark, 16))
        if len(data) < end:
            return
        yield mark, data[at + 4 : end], end
        at = end


async def ask_objections(ask: Objections, names: Sequence[str]) -> dict[str, str]:
    """What whoever made the rule knows about these refs or objects; while they do not say, none is allowed."""
    try:
        found = await ask(names)
    except Unanswered as silence:
        found = dict.fromkeys(names, str(silence))
    return {name: " ".join(reason.split()) for name, reason in found.items()}


@dataclass(eq=False, slots=True)
class Known:
    """The objects that were advertised by the names of visible refs."""

    objects: set[bytes] = field(default_factory=set)

    def add(self, *objects: bytes) -> None:
        if len(self.objects) < _MAX_KNOWN:
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
        """What can be passed on; ProxyRefused where it is no list of refs."""
        self._held += data
        passed, at = [], 0
        for mark, content, end in _packets(self._held):
            passed.append(self._flushed(mark) if mark < b"0004" else self._line(content))
            at = end
        self._held = self._held[at:]
        return b"".join(passed)

    def rest(self) -> bytes:
        """Nothing is left at the end of a list that is whole."""
        if self._held:
            raise ProxyRefused("the upstream's list of refs ends too soon", status=502)
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
        """Read a whole request; ProxyRefused where it is none that this proxy understands."""
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


async def check_fetch(asked: FetchRequest, access: GitAccess, known: Known) -> None:
    """Raise ProxyRefused where a fetch wants what it may not see."""
    hidden = next((ref for ref in asked.refs if ref.startswith(HIDDEN)), None)
    if hidden is not None:
        raise _refused(f"{hidden.decode(errors='replace')} is what strangers propose, and is not fetched")
    unnamed = [name.decode() for name in dict.fromkeys(asked.wants) if name not in known.objects]
    if not unnamed:
        return
    reasons = dict.fromkeys(unnamed, "no branch or tag names it")
    if access.commit_objections is not None:
        reasons = await ask_objections(access.commit_objections, unnamed)
    for name, reason in reasons.items():
        raise _refused(f"{name} may not be fetched: {reason}")


def decompress(body: bytes, encoding: bytes) -> bytes:
    """A request's body as git reads it; ProxyRefused for what cannot be read in one way only."""
    if encoding in (b"", b"identity"):
        return body
    if encoding not in (b"gzip", b"x-gzip"):
        raise ProxyRefused("a fetch in this compression cannot be checked", status=415)
    unpacking = zlib.decompressobj(31)
    try:
        data = unpacking.decompress(body, _MAX_UNPACKED)
    except zlib.error:
        raise _malformed("its compression is broken") from None
    if not unpacking.eof or unpacking.unused_data:
        raise _malformed("its compression is broken, or it is too long")
    return data


def _lines(data: bytes) -> list[bytes]:
    lines, at = [], 0
    for mark, content, end in _packets(data):
        if mark == b"0003":
            raise _malformed("a packet kind that a fetch does not have")
        if mark >= b"0004":
            lines.append(content.removesuffix(b"\n"))
        at = end
    if at < len(data):
        raise _malformed("a packet that is cut off")
    return lines


def _refused(reason: str) -> ProxyRefused:
    return ProxyRefused(reason, report=packet(b"ERR " + reason.encode()), report_type=_FETCH_RESULT)
