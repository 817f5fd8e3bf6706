"""The OpenAPI document: valid, complete, and true whatever is sent."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx2
import hypothesis
import pytest
from jsonschema_rs import Draft202012Validator

from gofer.web.api.http import EmptyBody
from gofer.web.api.openapi import document
from gofer.web.api.table import OPERATIONS
from support.web_server import House

CONFIG = Path(__file__).with_name("schemathesis.toml")
STREAMS = ("events.follow", "conversations.follow")


def test_every_operation_is_described_with_its_role_and_its_answers() -> None:
    found = {each["operationId"]: each for path in document()["paths"].values() for each in path.values()}
    assert found.keys() == {each.name for each in OPERATIONS}
    for each in OPERATIONS:
        described = found[each.name]
        assert described["summary"], each.name
        assert each.role in described["description"]
        assert {str(each.status), "401", "403", "503"} <= described["responses"].keys()


def test_every_reference_leads_somewhere_and_every_schema_is_one() -> None:
    whole = document()
    schemas = whole["components"]["schemas"]
    for target in re.findall(r"'\$ref': '([^']+)'", str(whole)):
        assert target.removeprefix("#/components/schemas/") in schemas
    each = [{"$ref": f"#/components/schemas/{name}"} for name in schemas]
    assert Draft202012Validator({"anyOf": each, "components": whole["components"]})


def test_it_is_served_with_a_page_that_asks_nobody_else_for_anything(house: House) -> None:
    assert httpx2.get(f"{house.url}/api/v1/openapi.json").json() == document()
    page = httpx2.get(f"{house.url}/api/v1/docs")
    assert page.headers["content-type"].startswith("text/html")
    for each in OPERATIONS:
        assert each.name in page.text
    assert not re.findall(r'(?:src|href|action)="(?!/|#)', page.text)
    assert "<script" not in page.text.replace('<script src="/static', "")


@pytest.fixture(scope="module")
def token(house: House) -> str:
    return house.token(house.owner())


# The library itself draws at random inside a strategy.
@pytest.mark.slow(long=True)
@pytest.mark.filterwarnings("ignore::hypothesis.errors.HypothesisDeprecationWarning")
def test_whatever_is_sent_is_answered_as_documented(house: House, token: str) -> None:
    """Something right and something wrong to each; `make chaos` sends thousands."""
    # Here alone: every process of a run reads this file, and few need it.
    import schemathesis
    from schemathesis.config import SchemathesisConfig
    from schemathesis.core.result import Ok
    from schemathesis.specs.openapi.checks import ignored_auth

    schema = schemathesis.openapi.from_url(
        f"{house.url}/api/v1/openapi.json", config=SchemathesisConfig.from_path(CONFIG)
    )
    schema.config.update(base_url=f"{house.url}/api/v1", headers={"Authorization": f"Bearer {token}"})
    by_name = {each.name: each for each in OPERATIONS}
    for found in schema.get_all_operations():
        assert isinstance(found, Ok)
        operation, here = found.ok(), by_name[found.ok().definition.raw["operationId"]]
        if here.stream:
            continue
        if here.body is None or here.body is EmptyBody:
            _ask(operation, ignored_auth)
        else:
            for mode in (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE):
                _try(operation.as_strategy(generation_mode=mode), ignored_auth)


def _ask(operation: Any, without: Any) -> None:
    """Where there is nothing to say, one plain question: drawing many takes long and finds nothing else."""
    kinds = {each.name: each.definition["schema"].get("type") for each in operation.path_parameters}
    places = {name: 1 if kind == "integer" else "nowhere" for name, kind in kinds.items()}
    operation.Case(path_parameters=places).call_and_validate(excluded_checks=[without])


def _try(cases: Any, without: Any) -> None:
    """The simplest case there is."""

    @hypothesis.given(case=cases)
    @hypothesis.settings(
        max_examples=1,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )
    def sent(case: Any) -> None:
        case.call_and_validate(excluded_checks=[without])

    sent()


@pytest.mark.chaos
def test_nothing_is_found_by_a_long_look(house: House, token: str) -> None:
    url = f"{house.url}/api/v1"
    done = subprocess.run(
        [
            *(str(Path(sys.executable).with_name("st")), "--config-file", str(CONFIG), "run"),
            *(f"{url}/openapi.json", "--url", url, "--no-color", "--workers", "2", "--max-examples", "100"),
            *("--phases", "coverage,fuzzing"),
            *(word for name in STREAMS for word in ("--exclude-operation-id", name)),
            *("-H", f"Authorization: Bearer {token}"),
        ],
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0, done.stdout[-20_000:]
