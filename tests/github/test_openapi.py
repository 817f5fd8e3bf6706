"""What Gofer sends to GitHub, and what the stand-in answers, is what GitHub's own OpenAPI (npm) describes."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections import Counter
from pathlib import Path

import pytest
from benchmarks.node_peers import ROOT, NotInstalled, install

from support.github_openapi import OpenAPI, read

pytestmark = pytest.mark.peer
WANTED = ROOT / "benchmarks" / "node" / "openapi" / "package.json"
FLOWS = "tests/github"
NOT_DESCRIBED = {
    "GET /search/issues: answer.items[].body: null is no string": "an issue without a body has none in a search either",
}
"""Where GitHub's description says less than GitHub."""


async def test_githubs_openapi_describes_every_request_and_answer_of_the_flows(tmp_path: Path) -> None:
    try:
        place = await asyncio.to_thread(install, WANTED, ROOT / ".bench" / "openapi")
    except NotInstalled as error:
        pytest.skip(str(error))
    described = place / "node_modules" / "@octokit" / "openapi" / "generated" / "api.github.com.json"
    api = OpenAPI(json.loads(described.read_text()))
    tests = [
        sys.executable,
        "-m",
        "pytest",
        "-q",
        "-n",
        "2",
        "-p",
        "support.github_openapi",
        "-m",
        "not peer and not chaos",
    ]
    environment = {**os.environ, "GITHUB_EXCHANGES": str(tmp_path), "PYTHONPATH": str(ROOT / "tests")}
    process = await asyncio.create_subprocess_exec(
        *tests, FLOWS, cwd=ROOT, env=environment, stdout=asyncio.subprocess.PIPE
    )
    told, _ = await process.communicate()
    assert process.returncode == 0, told.decode()[-3000:]
    wrong, seen = Counter[str](), Counter[str]()
    for exchange in read(tmp_path):
        if exchange.path.endswith("/graphql"):
            continue  # which is described elsewhere
        found = api.operation(exchange)
        if found is None:
            wrong[f"{exchange.method} {exchange.path}: no such operation ({exchange.status})"] += 1
            continue
        path, operation = found
        seen[f"{exchange.method} {path}"] += 1
        for one in api.wrong_request(exchange, operation) + api.wrong_answer(exchange, operation):
            wrong[f"{exchange.method} {path}: {one}"] += 1
    assert not set(wrong) - set(NOT_DESCRIBED), "\n".join(sorted(wrong))
    assert len(seen) > 40, seen
