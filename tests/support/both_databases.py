"""For files whose tests run SQL that others try on both databases too: `database_url = slow_on_postgres`."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import pytest

BOTH = ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)]


@pytest.fixture(params=BOTH)
def slow_on_postgres(request: pytest.FixtureRequest) -> str:
    """`GOFER_DATABASE_URL` of each database; `make test` runs SQLite alone."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return url


def on_both_by_turns(points: Sequence[str]) -> Iterator[tuple[str, str, bool]]:
    """Each crash point on each database, and whether CI should try that. It tries a point that a flow passes once on
    both; of one that is passed again and again (`name:1`, `name:2`, …) each passage on one database, by turns."""
    names = [point.partition(":")[0] for point in points]
    for place, (point, name) in enumerate(zip(points, names, strict=True)):
        turn = names[:place].count(name) % 2
        for number, database in enumerate(("sqlite", "postgresql")):
            yield point, database, names.count(name) == 1 or number == turn
