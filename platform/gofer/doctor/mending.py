"""What can be mended without asking: nothing here loses anything, or changes what somebody chose."""

from __future__ import annotations

import os

from gofer.errors import GoferError
from gofer.settings import Settings, may_be_closed, prepare_data_dir


def mend(settings: Settings) -> list[str]:
    """Mend what can be mended from outside; returns what was done."""
    path = settings.data_dir
    done = []
    if not os.path.exists(path):
        prepare_data_dir(settings)
        done.append(f"Made {path}.")
    try:
        # A directory that others share is theirs, too: the round that follows says to choose another.
        if path.stat().st_mode & 0o077 and may_be_closed(path):
            path.chmod(0o700)
            done.append(f"Closed {path} to others.")
        if settings.key_path.is_file() and settings.key_path.stat().st_mode & 0o077:
            settings.key_path.chmod(0o600)
            done.append(f"Closed {settings.key_path} to others.")
    except OSError as error:
        raise GoferError(f"{path} cannot be mended: {error.strerror}.") from error
    return done
