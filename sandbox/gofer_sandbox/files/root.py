"""The root of a live sandbox, seen from outside, which strings may be paths in it, and the only ways files beneath it
are opened."""

from __future__ import annotations

import errno
import os
import stat

from gofer_sandbox.errors import SandboxGone
from gofer_sandbox.files.errors import FileRefused, InvalidPath, NotAFile
from gofer_sandbox.kernel import (
    PROC_SUPER_MAGIC,
    RESOLVE_IN_ROOT,
    RESOLVE_NO_MAGICLINKS,
    RESOLVE_NO_SYMLINKS,
    closing,
    filesystem_type,
    mount_id,
    openat2,
)

_RESOLVE = RESOLVE_IN_ROOT | RESOLVE_NO_MAGICLINKS
_MAX_LINKS = 40  # as many as the kernel
_MAX_TRIES = 64  # openat2 gives EAGAIN when a rename inside races with `..`
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

    def __init__(self, fd: int, private: tuple[str, ...]) -> None:
        self.fd = fd
        self._private = frozenset(i for i in map(self._mount_of, private) if i is not None)

    def _mount_of(self, path: str) -> int | None:
        """The mount id of a private place, unless it is not a mount of its own here."""
        try:
            fd = openat2(self.fd, path, os.O_PATH, _RESOLVE | RESOLVE_NO_SYMLINKS)
        except OSError:
            return None
        with closing(fd):
            found = mount_id(fd)
        return None if found == mount_id(self.fd) else found

    def open(self, path: str, flags: int) -> int:
        """Open beneath the root, refusing the sandbox's own machinery however it was reached."""
        for attempt in range(_MAX_TRIES):
            try:
                fd = openat2(self.fd, path, flags, _RESOLVE)
                break
            except BlockingIOError:
                if attempt == _MAX_TRIES - 1:
                    raise
        try:
            self._refuse_machinery(fd, path)
        except BaseException:
            os.close(fd)
            raise
        return fd

    def _refuse_machinery(self, fd: int, path: str) -> None:
        if filesystem_type(fd) == PROC_SUPER_MAGIC:
            raise FileRefused(path, "files of /proc are not read from outside; use a command")
        if self._private and mount_id(fd) in self._private:
            raise FileRefused(path, "it belongs to the sandbox itself")

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
        try:
            return self.open_directory(path)
        except FileNotFoundError:
            pass
        made = ""
        for part in (p for p in path.split("/") if p):
            above, made = made or "/", f"{made}/{part}"
            with closing(self.open_directory(above)) as parent:
                try:
                    os.mkdir(part, 0o755, dir_fd=parent)
                except FileExistsError:
                    continue
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
