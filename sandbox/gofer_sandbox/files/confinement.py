"""Reading and changing a live sandbox's files from outside, with exactly the rights its session has."""

from __future__ import annotations

import errno
import os
import secrets
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from gofer_sandbox import kernel
from gofer_sandbox.errors import SandboxGone
from gofer_sandbox.files import edits as editing
from gofer_sandbox.files.edits import Edit
from gofer_sandbox.files.errors import (
    BinaryFile,
    FileBusy,
    FileMissing,
    FileRefused,
    FileTooLarge,
    InvalidPath,
    NotAFile,
    explained,
)
from gofer_sandbox.files.text import SNIFF, TextPage, is_binary, read_page
from gofer_sandbox.kernel import acting_as, closing
from gofer_sandbox.limits import MIB
from gofer_sandbox.shell.scripts import INSIDE
from gofer_sandbox.tree import open_directory

MAX_READ, MAX_WRITE, MAX_EDIT = 16 * MIB, 64 * MIB, 8 * MIB
"""Bytes that one file operation may hold in memory or answer with."""
_MAX_NAMES = 100_000  # a directory beyond this is listed in part, so that time and memory stay bounded


@dataclass(frozen=True, slots=True)
class BytesPage:
    """A range of a file's bytes; `size` is the whole file's."""

    path: str
    data: bytes
    offset: int
    size: int


@dataclass(frozen=True, slots=True)
class Written:
    """A file was put in place whole."""

    path: str
    size: int
    created: bool


@dataclass(frozen=True, slots=True)
class Edited:
    """A file was changed; `diff` is unified."""

    path: str
    size: int
    diff: str


@dataclass(frozen=True, slots=True)
class FileEntry:
    """One file, directory, link, pipe, socket or device. `target` is where a link points."""

    name: str
    kind: str
    size: int
    mode: int
    modified: float
    target: str | None = None


@dataclass(frozen=True, slots=True)
class Listing:
    """A directory's entries by name; `more` counts those left out, at least."""

    path: str
    entries: tuple[FileEntry, ...]
    more: int


class ConfinedFiles:
    """The files of one sandbox, given a process that lives in it and the user its session runs as.

    Paths are resolved by the kernel inside the sandbox's own root and mounts, so links lead where they would
    lead a command inside and never out. The methods block: call them in a worker thread.
    """

    def __init__(self, pid: int, uid: int, gid: int, base: str) -> None:
        """`base` is where relative paths begin."""
        if os.geteuid() not in (0, uid):
            raise FileRefused("/", f"only root or uid {uid} can reach this sandbox's files")
        try:
            self._process = open_directory(f"/proc/{pid}")
        except (FileNotFoundError, ProcessLookupError):
            raise SandboxGone from None
        self._uid, self._gid = uid, gid
        self._base = base

    def close(self) -> None:
        """Let go of the process; the object is of no use afterwards."""
        os.close(self._process)

    def read_bytes(self, path: str, *, offset: int = 0, limit: int | None = None) -> BytesPage:
        """Up to `limit` bytes from `offset`; the limit is capped by the library's own."""
        if offset < 0 or (limit is not None and limit < 0):
            raise InvalidPath(path, "offset and limit cannot be negative")
        want = MAX_READ if limit is None else min(limit, MAX_READ)
        with self._entered(path) as (root, whole), closing(root.open_regular(whole)) as fd:
            return BytesPage(whole, _read(fd, offset, want), offset, os.fstat(fd).st_size)

    def read_text(self, path: str, *, first_line: int = 1, lines: int = 2000) -> TextPage:
        """A page of lines, counted from 1; BinaryFile where the file is not text."""
        if first_line < 1 or lines < 1:
            raise InvalidPath(path, "lines are counted from 1, and at least one must be asked for")
        with self._entered(path) as (root, whole), closing(root.open_regular(whole)) as fd:
            if is_binary(os.pread(fd, SNIFF, 0)):
                size = os.fstat(fd).st_size
                raise BinaryFile(whole, f"binary file of {size} bytes; read it as bytes or use a command")
            return read_page(fd, whole, first_line, lines)

    def write(self, path: str, data: bytes) -> Written:
        """Put the content in place atomically, making the directories above it; keeps an old file's mode."""
        if len(data) > MAX_WRITE:
            raise FileTooLarge(str(path), f"{len(data)} bytes; at most {MAX_WRITE} can be written")
        with self._entered(path) as (root, whole):
            parent, name = root.open_parent(whole, create=True)
            with closing(parent):
                before = _replaceable(parent, name, whole)
                _replace(parent, name, data, before)
                return Written(whole, len(data), before is None)

    def edit(self, path: str, edits: Sequence[Edit]) -> Edited:
        """Apply exact edits, all or none; EditRefused says which does not match, and why."""
        with self._entered(path) as (root, whole):
            parent, name = root.open_parent(whole, create=False)
            with closing(parent):
                info = _replaceable(parent, name, whole)
                with closing(root.open_regular(whole)) as fd:
                    opened = os.fstat(fd)
                    before = _editable(fd, whole)
                spans = editing.find(whole, before, edits)
                after = editing.apply(before, spans)
                if info is None or not _same(info, opened) or not _unchanged(parent, name, opened):
                    raise FileBusy(whole, "the file changed during the edit; read it again")
                _replace(parent, name, after, opened)
                return Edited(whole, len(after), editing.unified_diff(whole, before, spans))

    def list(self, path: str, *, limit: int = 1000) -> Listing:
        """The directory's entries by name, at most `limit` of them."""
        if limit < 1:
            raise InvalidPath(path, "at least one entry must be asked for")
        with (
            self._entered(path) as (root, whole),
            closing(root.open(whole, os.O_RDONLY | os.O_DIRECTORY)) as fd,
        ):
            return list_directory(fd, whole, limit)

    @contextmanager
    def _entered(self, path: str) -> Iterator[tuple[Root, str]]:
        """Open the root with the server's rights, then act as the session, with errors in plain words."""
        whole = absolute_path(path, self._base)
        try:
            with explained(whole), closing(open_root(self._process)) as fd, acting_as(self._uid, self._gid):
                yield Root(fd), whole
        except FileMissing:
            os.close(open_root(self._process))  # SandboxGone where it was the mounts that went away meanwhile
            raise


def _editable(fd: int, path: str) -> bytes:
    size = os.fstat(fd).st_size
    if size > MAX_EDIT:
        raise FileTooLarge(path, f"{size} bytes; at most {MAX_EDIT} can be edited, use a command such as sed")
    data = _read(fd, 0, MAX_EDIT)
    if is_binary(data):
        raise BinaryFile(path, "a binary file cannot be edited as text")
    return data


def _read(fd: int, offset: int, want: int) -> bytes:
    """Read until enough or the end; a file that grows meanwhile cannot make it more."""
    pieces = []
    while want > 0 and (piece := os.pread(fd, min(want, 1 << 20), offset)):
        pieces.append(piece)
        offset += len(piece)
        want -= len(piece)
    return b"".join(pieces)


def _same(one: os.stat_result, other: os.stat_result) -> bool:
    return (one.st_dev, one.st_ino) == (other.st_dev, other.st_ino)


def _unchanged(parent: int, name: str, opened: os.stat_result) -> bool:
    try:
        now = os.stat(name, dir_fd=parent, follow_symlinks=False)
    except FileNotFoundError:
        return False
    same_content = (now.st_mtime_ns, now.st_size) == (opened.st_mtime_ns, opened.st_size)
    return _same(now, opened) and same_content


def _replaceable(parent: int, name: str, path: str) -> os.stat_result | None:
    """What stands there now, or None.

    Renaming over a file asks only for rights on its directory, so the file's own are tried here: what a
    command could not write, this must not replace.
    """
    try:
        info = os.stat(name, dir_fd=parent, follow_symlinks=False)
        require_regular(info, path)
        flags = os.O_WRONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_NOFOLLOW | os.O_CLOEXEC
        os.close(os.open(name, flags, dir_fd=parent))
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.ETXTBSY:  # a running program may be replaced, its process keeps the old one
            return info
        raise
    return info


def _replace(parent: int, name: str, data: bytes, before: os.stat_result | None) -> None:
    """Write beside it and rename: readers see the old or the new, and another hard link keeps the old."""
    temporary = f".{secrets.token_hex(8)}.part"
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(temporary, flags, 0o600, dir_fd=parent)
    try:
        with closing(fd):
            view = memoryview(data)
            while view:
                view = view[os.write(fd, view) :]
            os.fchmod(fd, 0o644 if before is None else before.st_mode & 0o777)
        os.rename(temporary, name, src_dir_fd=parent, dst_dir_fd=parent)
    except BaseException:
        os.unlink(temporary, dir_fd=parent)
        raise


def _printable(name: str) -> str:
    """A name that can be shown and stored: bytes that are not UTF-8 become escapes."""
    return os.fsencode(name).decode(errors="backslashreplace")


def list_directory(fd: int, path: str, limit: int) -> Listing:
    """Names first, since sorting needs them all; details only for those that are answered."""
    names = []
    with os.scandir(fd) as found:
        for entry in found:
            names.append(entry.name)
            if len(names) == _MAX_NAMES:
                break
    names.sort()
    entries = [e for e in (_entry(fd, name) for name in names[:limit]) if e is not None]
    return Listing(path, tuple(entries), len(names) - min(limit, len(names)))


def _entry(fd: int, name: str) -> FileEntry | None:
    """The entry, or None where it went away while we looked."""
    try:
        info = os.stat(name, dir_fd=fd, follow_symlinks=False)
        target = _printable(os.readlink(name, dir_fd=fd)) if stat.S_ISLNK(info.st_mode) else None
    except OSError:
        return None
    mode = stat.S_IMODE(info.st_mode)
    return FileEntry(_printable(name), kind_of(info.st_mode), info.st_size, mode, info.st_mtime, target)


_RESOLVE = kernel.RESOLVE_IN_ROOT | kernel.RESOLVE_NO_MAGICLINKS
_MAX_LINKS = 40  # as many as the kernel
_MAX_TRIES = 64  # kernel.openat2 gives EAGAIN when a rename inside races with `..`
_MAX_PATH = 4095
_MAX_NAME = 255
_MAX_DEPTH = 128


def open_root(process: int) -> int:
    """The sandbox's root directory, through its process's open directory in /proc.

    That descriptor stands for one process for ever: once it has died this fails, even if its number is taken.
    """
    try:
        return os.open("root", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=process)
    except (FileNotFoundError, ProcessLookupError):
        raise SandboxGone from None


class Root:
    """One operation's view of the sandbox's files; every path is resolved by the kernel within it."""

    def __init__(self, fd: int) -> None:
        self.fd = fd
        self._private = self._control_mount()

    def _control_mount(self) -> int | None:
        """The mount id of the control directory, unless it is not a mount of its own here."""
        try:
            fd = kernel.openat2(self.fd, INSIDE, os.O_PATH, _RESOLVE | kernel.RESOLVE_NO_SYMLINKS)
        except OSError:
            return None
        with closing(fd):
            found = kernel.mount_id(fd)
        return None if found == kernel.mount_id(self.fd) else found

    def open(self, path: str, flags: int) -> int:
        """Open beneath the root, refusing the sandbox's own machinery however it was reached."""
        for attempt in range(_MAX_TRIES):
            try:
                fd = kernel.openat2(self.fd, path, flags, _RESOLVE)
                break
            except BlockingIOError:
                if attempt == _MAX_TRIES - 1:
                    raise
        try:
            if kernel.filesystem_type(fd) == kernel.PROC_SUPER_MAGIC:
                raise FileRefused(path, "files of /proc are not read from outside; use a command")
            if self._private is not None and kernel.mount_id(fd) == self._private:
                raise FileRefused(path, "it belongs to the sandbox itself")
        except BaseException:
            os.close(fd)
            raise
        return fd

    def open_regular(self, path: str) -> int:
        """Open a regular file for reading. Pipes and devices are recognised before they are opened."""
        handle = self.open(path, os.O_PATH)
        with closing(handle):
            require_regular(os.fstat(handle), path)
            flags = os.O_RDONLY | os.O_NONBLOCK | os.O_NOCTTY | os.O_CLOEXEC
            return os.open(f"/proc/self/fd/{handle}", flags)

    def open_parent(self, path: str, *, create: bool) -> tuple[int, str]:
        """The directory that holds the path's file and its name there, links in the last place followed.

        A write replaces a name, so the link itself must not be what is replaced.
        """
        for _ in range(_MAX_LINKS):
            directory, name = split(path)
            parent = self._make_directory(directory) if create else self.open_directory(directory)
            target = _link_target(parent, name)
            if target is None:
                return parent, name
            os.close(parent)
            path = target if target.startswith("/") else f"{directory.rstrip('/')}/{target}"
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), path)

    def open_directory(self, path: str) -> int:
        return self.open(path, os.O_PATH | os.O_DIRECTORY)

    def _make_directory(self, path: str) -> int:
        """Open a directory, making it and those above it where they are missing."""
        with suppress(FileNotFoundError):
            return self.open_directory(path)
        made = ""
        for part in (p for p in path.split("/") if p):
            above, made = made or "/", f"{made}/{part}"
            with closing(self.open_directory(above)) as parent, suppress(FileExistsError):
                os.mkdir(part, 0o755, dir_fd=parent)
        return self.open_directory(path)


def require_regular(info: os.stat_result, path: str) -> None:
    """NotAFile unless it is a regular file, saying what it is instead."""
    if not stat.S_ISREG(info.st_mode):
        raise NotAFile(path, f"it is a {kind_of(info.st_mode)}, not a regular file")


def kind_of(mode: int) -> str:
    """The plain word for a kind of file."""
    words = {
        stat.S_IFREG: "file",
        stat.S_IFDIR: "directory",
        stat.S_IFLNK: "link",
        stat.S_IFIFO: "pipe",
        stat.S_IFSOCK: "socket",
        stat.S_IFCHR: "device",
        stat.S_IFBLK: "device",
    }
    return words.get(stat.S_IFMT(mode), "unknown")


def _link_target(parent: int, name: str) -> str | None:
    try:
        return os.readlink(name, dir_fd=parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        if error.errno == errno.EINVAL:  # it is not a link
            return None
        raise


def absolute_path(path: object, base: str = "/") -> str:
    """The absolute path inside the sandbox, or InvalidPath saying why it cannot be one.

    `..` and links are left for the kernel to resolve: doing it here by text would be wrong behind a link.
    """
    if not isinstance(path, str):
        raise InvalidPath(repr(path)[:80], f"a path is a string, not {type(path).__name__}")
    if not path:
        raise InvalidPath(path, "the path is empty")
    if "\0" in path:
        raise InvalidPath(path, "a path cannot hold a NUL character")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise InvalidPath(path, "a path cannot hold lone surrogates") from None
    whole = path if path.startswith("/") else f"{base.rstrip('/')}/{path}"
    parts = whole.split("/")
    if len(whole.encode()) > _MAX_PATH or any(len(part.encode()) > _MAX_NAME for part in parts):
        raise InvalidPath(path, f"longer than {_MAX_PATH} bytes, or a name in it longer than {_MAX_NAME}")
    if len(parts) > _MAX_DEPTH:
        raise InvalidPath(path, f"deeper than {_MAX_DEPTH} directories")
    return whole


def split(path: str) -> tuple[str, str]:
    """The directory and the last name; InvalidPath where there is no name to create."""
    parent, _, name = path.rpartition("/")
    if name in ("", ".", ".."):
        raise InvalidPath(path, "the path names a directory, not a file")
    return parent or "/", name
