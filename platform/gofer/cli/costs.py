"""`gofer costs`: what was paid to models."""

from __future__ import annotations

from typing import Annotated

import typer

from gofer.cli.client import call
from gofer.cli.output import Shown, table


def costs(
    days: Annotated[
        int, typer.Option(min=1, max=366, help="How many days to show, of those with costs.")
    ] = 7,
) -> Shown:
    """Show what was paid to models, by day, agent and connection.

    \b
    gofer costs
    gofer costs --days 30
    """
    found = call("GET", "/costs", params={"days": days})
    rows = [
        (each["day"], each["agent"], each["connection_id"], each["calls"], f"${each['dollars']:.4f}")
        for each in found["costs"]
    ]

    def in_words() -> None:
        table(("day", "agent", "connection", "calls", "paid"), rows, empty="Nothing was paid yet.")
        print(f"Today ${found['today']:.4f}; in all ${found['total']:.4f}.")

    return found, in_words
