"""`python -m gofer_supervisor CONFIG`: supervise the release that the configuration names. `gofer up` calls it."""

from __future__ import annotations

import json
import sys

from gofer_supervisor.home import Home, HomeError, Release
from gofer_supervisor.supervisor import CONFIGURATION, Supervisor
from gofer_supervisor.system import Config

FAILED = 1
"""Ended by what may be different in a moment, such as a full disk: systemd starts it again, unlike after 78."""


def main() -> int:
    """Read the configuration, a JSON object, and supervise until told to stop."""
    given = json.loads(sys.argv[1])
    release = Release(**given.pop("release"))
    home = Home(given.pop("home"))
    try:
        return Supervisor(home, Config(release=release, **given)).run()
    except HomeError as error:
        sys.stderr.write(f"{error}\n")
        return CONFIGURATION
    except OSError as error:
        sys.stderr.write(f"The supervisor cannot start: {error}\n")
        return FAILED


if __name__ == "__main__":
    sys.exit(main())
