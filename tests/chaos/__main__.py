"""`make chaos CYCLES=200`: kill and stop Gofer's processes under load, and count what was lost.

Each cycle starts from a running installation and people who write all the time. It does one thing to one process
(SIGKILL, SIGTERM, or SIGSTOP until past the lease and then SIGCONT), starts what has ended again, and now and then
lets the service answer 429 or 500, hang up after taking a reply, or stall. At the end everything must have come to
an end, and the store and the service's own ledger are compared.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import sys

from chaos.campaign import campaign


def main() -> int:
    parser = argparse.ArgumentParser(prog="chaos", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cycles", type=int, default=200)
    parser.add_argument("--database", choices=["sqlite", "postgresql", "both"], default="both")
    parser.add_argument("--service", choices=["hello", "probe", "both"], default="both")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--json", action="store_true", help="print the figures as JSON")
    given = parser.parse_args()
    databases = ["sqlite", "postgresql"] if given.database == "both" else [given.database]
    services = ["hello", "probe"] if given.service == "both" else [given.service]
    tallies = []
    for database in databases:
        for service in services:
            cycles = given.cycles // len(services)
            tallies.append(asyncio.run(campaign(database, service, cycles, seed=given.seed)))
            print(json.dumps(tallies[-1].figures()) if given.json else tallies[-1].line(), flush=True)
            for complaint in tallies[-1].complaints:
                print(f"  {complaint}", file=sys.stderr)
    return 0 if all(tally.clean for tally in tallies) else 1


if __name__ == "__main__":
    sys.exit(main())
