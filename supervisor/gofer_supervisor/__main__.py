"""`python -m gofer_supervisor CONFIG`: supervise the release that the configuration names. `gofer up` calls it."""

from __future__ import annotations

import json
import sys

from gofer_supervisor.home import Home, HomeError, Release
from gofer_supervisor.supervisor import CONFIGURATION, Supervisor
from gofer_supervisor.system import Config


def main() -> int:
    """Read the configuration, a JSON object, and supervise until told to stop."""
    given = json.loads(sys.argv[1])
    release = Release(**given.pop("release"))
    home = Home(given.pop("home"))
    try:
        return Supervisor(home, Config(release=release, **given)).run()
    except (HomeError, OSError) as error:
        sys.stderr.write(f"{error}\n")
        return CONFIGURATION


if __name__ == "__main__":
    sys.exit(main())
