"""`make chaos CYCLES=200`: kill and stop Gofer's processes under load, and count what was lost.

Each cycle starts from a running installation and people who write all the time. It does one thing to one process
(SIGKILL, SIGTERM, or SIGSTOP until past the lease and then SIGCONT), starts what has ended again, and now and then
lets the service answer 429 or 500, hang up after taking a reply, or stall. At the end everything must have come to
an end, and the store and the service's own ledger are compared. Then releases are deployed, good and bad ones, and
something is killed at each step of that.
"""

from __future__ import annotations

import argparse
import asyncio
import itertools
import json
import sys
from typing import Any

from chaos.campaign import campaign
from chaos.deployments import MATRIX, cases, deployments


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--database", choices=["sqlite", "postgresql", "both"], default="both")
    parser.add_argument("--service", choices=["hello", "probe", "both"], default="both")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--deployments",
        type=int,
        help="releases that are deployed; by default every victim is killed at every step once",
    )
    parser.add_argument("--skip", type=int, default=0, help="deployments that another run has done")
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = parser.parse_args()
    databases = ["sqlite", "postgresql"] if given.database == "both" else [given.database]
    services = ["hello", "probe"] if given.service == "both" else [given.service]
    tallies: list[Any] = []
    for database in databases:
        for service in services:
            cycles = given.cycles // len(services)
            if cycles:
                tallies.append(asyncio.run(campaign(database, service, cycles, seed=given.seed)))
                tell(tallies[-1], as_json=given.json)
        count = len(MATRIX) if given.deployments is None else given.deployments
        chosen = list(itertools.islice(cases(given.seed), given.skip, given.skip + count))
        if chosen:
            tallies.append(asyncio.run(deployments(database, chosen)))
            tell(tallies[-1], as_json=given.json)
    return 0 if all(tally.clean for tally in tallies) else 1


def tell(tally: Any, *, as_json: bool) -> None:
    print(json.dumps(tally.figures()) if as_json else tally.line(), flush=True)
    for complaint in tally.complaints:
        print(f"  {complaint}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
