"""What can go wrong with a file of a sandbox. A sandbox that has ended raises the library's own SandboxGone."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager

from gofer_sandbox.errors import InvalidInput, SandboxError, SandboxGone, shown


class FileError(SandboxError):
    """A file operation in the sandbox failed."""

    def __init__(self, path: str, reason: str) -> None:
        super().__init__(f"{shown(path)}: {reason}")
        self.path = path
        self.reason = reason


class InvalidPath(FileError, InvalidInput):
    """The path or a number given with it cannot be right."""


class FileMissing(FileError):
    """Nothing is there."""


class FileRefused(FileError):
    """It is there, but may not be touched: rights, read-only places, the sandbox's own files."""


class NotAFile(FileError):
    """A directory, pipe, socket or device where a regular file is needed, or no directory where one is."""


class FileTooLarge(FileError):
    """The file or the data is larger than this operation takes."""


class BinaryFile(FileError):
    """The file is not text, where text was asked for."""


class FileBusy(FileError):
    """A process in the sandbox holds the file or keeps changing it."""


class NoSpace(FileError):
    """The sandbox's disk or quota is full."""


class EditRefused(FileError):
    """An edit does not match the file exactly once; nothing was changed."""


_MEANINGS: dict[int, tuple[type[FileError], str]] = {
    errno.ENOENT: (FileMissing, "no such file or directory"),
    errno.ENOTDIR: (FileMissing, "a part of the path is not a directory"),
    errno.EISDIR: (NotAFile, "it is a directory"),
    errno.ENXIO: (NotAFile, "it is a pipe, socket or device"),
    errno.ELOOP: (FileRefused, "too many symbolic links, or one that leads out of the sandbox"),
    errno.EXDEV: (FileRefused, "the path leads out of the sandbox"),
    errno.EACCES: (FileRefused, "permission denied"),
    errno.EPERM: (FileRefused, "operation not permitted"),
    errno.EROFS: (FileRefused, "that place is read-only in the sandbox"),
    errno.EBUSY: (FileRefused, "it is a mount point and cannot be replaced"),
    errno.ENAMETOOLONG: (InvalidPath, "the path or a name in it is too long"),
    errno.EINVAL: (InvalidPath, "the filesystem does not accept this name"),
    errno.EAGAIN: (FileBusy, "a process in the sandbox holds the file; try again"),
    errno.ETXTBSY: (FileBusy, "the file is being executed"),
    errno.ENOSPC: (NoSpace, "no space left in the sandbox; remove something first"),
    errno.EDQUOT: (NoSpace, "the sandbox's disk quota is used up; remove something first"),
    errno.EFBIG: (NoSpace, "the file would be larger than the sandbox allows"),
}


@contextmanager
def explained(path: str) -> Iterator[None]:
    """Turn the kernel's error numbers into the errors above."""
    try:
        yield
    except ProcessLookupError as error:
        raise SandboxGone from error
    except OSError as error:
        kind, reason = _MEANINGS.get(error.errno or 0, (FileError, os.strerror(error.errno or 0)))
        raise kind(path, reason) from error
