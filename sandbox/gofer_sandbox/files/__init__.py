"""Files of a live sandbox, reached from outside without a process inside and without leaving it."""

from gofer_sandbox.files.confinement import (
    BytesPage,
    ConfinedFiles,
    Edited,
    FileEntry,
    Listing,
    Written,
)
from gofer_sandbox.files.edits import Edit
from gofer_sandbox.files.errors import (
    BinaryFile,
    EditRefused,
    FileBusy,
    FileError,
    FileMissing,
    FileRefused,
    FileTooLarge,
    InvalidPath,
    NoSpace,
    NotAFile,
)
from gofer_sandbox.files.text import TextPage

__all__ = [
    "BinaryFile",
    "BytesPage",
    "ConfinedFiles",
    "Edit",
    "EditRefused",
    "Edited",
    "FileBusy",
    "FileEntry",
    "FileError",
    "FileMissing",
    "FileRefused",
    "FileTooLarge",
    "InvalidPath",
    "Listing",
    "NoSpace",
    "NotAFile",
    "TextPage",
    "Written",
]
