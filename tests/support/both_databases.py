"""For files whose tests run SQL that others try on both databases too: `database_url = slow_on_postgres`."""

from __future__ import annotations

import pytest

BOTH = ["sqlite", pytest.param("postgresql", marks=pytest.mark.slow)]


@pytest.fixture(params=BOTH)
def slow_on_postgres(request: pytest.FixtureRequest) -> str:
    """`GOFER_DATABASE_URL` of each database; `make test` runs SQLite alone."""
    url: str = request.getfixturevalue("sqlite_url" if request.param == "sqlite" else "postgres_url")
    return url
