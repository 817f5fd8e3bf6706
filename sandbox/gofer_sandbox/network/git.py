"""What a push asks for, read from the beginning of its request, and whether that is allowed.

A push (git-receive-pack) is a list of pkt-lines, `<old> <new> <ref>` with capabilities after a NUL, ended by
a flush; then the pack. Whatever the upstream's git might read differently is refused: other packet kinds,
signed pushes (whose commands are in a certificate), unusual names.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gofer_sandbox.network.errors import Refused
from gofer_sandbox.network.rules import GitAccess

_HEAD_LIMIT = 256 * 1024
_UPDATES_LIMIT = 256
NOTHING = len(b"0000")
"""How long a push is that names no ref."""

_COMMAND = re.compile(rb"([0-9a-f]{40}|[0-9a-f]{64}) ([0-9a-f]{40}|[0-9a-f]{64}) ([\x21-\x7e\x80-\xff]+)")
_SHALLOW = re.compile(rb"shallow (?:[0-9a-f]{40}|[0-9a-f]{64})")
_BAD_REF = re.compile(r"\.\.|@\{|//|/\.|\.lock(/|$)|[\x00-\x20\x7f~^:?*\[\\]|[./]$")


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
        """Take more of the request; Refused where it is not a push this proxy understands."""
        self.data += data
        while not self.complete and (packet := self._nextpacket()) is not None:
            if packet == b"":
                self.complete = True
            else:
                self._take(packet)
        if not self.complete and len(self.data) > _HEAD_LIMIT:
            raise _malformed("its list of refs is too long")

    def _nextpacket(self) -> bytes | None:
        """The next packet's content, b"" for a flush, None when it is not there yet."""
        prefix = self.data[self._read : self._read + 4]
        if len(prefix) < 4:
            return None
        if not re.fullmatch(rb"[0-9a-f]{4}", prefix):
            raise _malformed("a packet's length is not four lower-case hex digits")
        length = int(prefix, 16)
        if length == 0:
            self._read += 4
            return b""
        if length < 5:
            raise _malformed("a packet kind that a push does not have")
        if len(self.data) < self._read + length:
            return None
        start, self._read = self._read + 4, self._read + length
        return self.data[start : self._read]

    def _take(self, packet: bytes) -> None:
        line, _, capabilities = packet.removesuffix(b"\n").partition(b"\0")
        if b"\0" in capabilities:
            raise _malformed("capabilities that git would read only a part of")
        if _SHALLOW.fullmatch(line):
            return
        match = _COMMAND.fullmatch(line)
        if match is None:
            kind = "a signed push" if line.startswith(b"push-cert") else "a line that is not `old new ref`"
            raise _malformed(kind)
        # Git takes `push-options=x` for `push-options`: only the names count.
        words = capabilities.decode("ascii", "replace").split()
        self.capabilities.update(word.partition("=")[0] for word in words)
        self.updates.append(Update(match[2].decode(), match[3].decode(errors="surrogateescape")))
        if len(self.updates) > _UPDATES_LIMIT:
            raise _malformed(f"more than {_UPDATES_LIMIT} refs at once")


def objections(push: PushHead, access: GitAccess) -> dict[str, str]:
    """Why each ref of the push is not allowed; empty when the whole push is."""
    if not access.push_options and "push-options" in push.capabilities:
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


def _malformed(what: str) -> Refused:
    return Refused(f"the push was not understood: {what}", status=400)
