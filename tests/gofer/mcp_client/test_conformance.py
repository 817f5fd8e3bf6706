# ruff: noqa: SIM905 - long lists of names
"""The conformance suite of MCP against our transport and our client. Whatever it has is run, or stands in a list with
the reason why not.

For the server it is run on an app with our guard and our endpoint: the suite sends no token and calls tools of its own.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from benchmarks.node_peers import NODE, ROOT

from support.async_bridge import Elsewhere
from support.mcp_packages import NEXT, RELEASED, packages
from support.mcp_suite_server import suite_app

pytestmark = pytest.mark.peer

SESSIONS = "Before 2026-07-28 a server asks its client within a session, and ours keeps none."
ASKS_NOBODY = "Our server asks its client for nothing: ask_person asks the people of a conversation."
REFUSED = "Our client refuses what servers ask of a model or a person."
EXTENSION = "An extension of the protocol that we do not use."
OLD = "Of versions before 2026-07-28; the released suite runs it."
BY_HAND_OR_ITSELF = (
    "We register by ourselves or by hand; a document at our own address would need a public one."
)
WRITTEN_OUT = "What a model sees of a schema has its references written out, so it is not as it came."
WRONG_ISSUER = (
    "The server names another issuer than itself, which the library refuses; the next suite corrects it."
)

SERVER = """
    server-initialize logging-set-level ping completion-complete tools-list tools-call-simple-text tools-call-image
    tools-call-audio tools-call-embedded-resource tools-call-mixed-content tools-call-with-logging tools-call-error
    tools-call-with-progress json-schema-2020-12 server-sse-multiple-streams resources-list resources-read-text
    resources-read-binary resources-templates-read resources-subscribe resources-unsubscribe prompts-list
    prompts-get-simple prompts-get-with-args prompts-get-embedded-resource prompts-get-with-image
    dns-rebinding-protection
""".split()
NOT_SERVER = dict.fromkeys(
    [
        *("tools-call-sampling", "tools-call-elicitation", "elicitation-sep1034-defaults"),
        *("elicitation-sep1330-enums", "server-sse-polling"),
    ],
    SESSIONS,
)
SERVER_NEXT = """
    server-stateless completion-complete tools-list tools-call-simple-text tools-call-image tools-call-audio
    tools-call-embedded-resource tools-call-mixed-content tools-call-error tools-call-with-progress
    json-schema-2020-12 server-sse-multiple-streams resources-list resources-read-text resources-read-binary
    resources-templates-read sep-2164-resource-not-found prompts-list prompts-get-simple prompts-get-with-args
    prompts-get-embedded-resource prompts-get-with-image dns-rebinding-protection caching http-header-validation
    http-custom-header-server-validation input-required-result-missing-input-response
    input-required-result-unsupported-methods input-required-result-ignore-extra-params
    input-required-result-validate-input
""".split()
NOT_SERVER_NEXT = {
    **NOT_SERVER,
    **dict.fromkeys(
        "server-initialize server-session-lifecycle logging-set-level ping tools-call-with-logging"
        " resources-subscribe resources-unsubscribe".split(),
        OLD,
    ),
    **dict.fromkeys(
        """
        input-required-result-basic-elicitation input-required-result-basic-sampling
        input-required-result-basic-list-roots input-required-result-request-state
        input-required-result-multiple-input-requests input-required-result-multi-round
        input-required-result-non-tool-request input-required-result-result-type
        input-required-result-tampered-state input-required-result-capability-check
        """.split(),
        ASKS_NOBODY,
    ),
    **dict.fromkeys(
        """
        sep-2640-skills-directory sep-2640-skills-enumeration sep-2640-skills-manifest tasks-lifecycle
        tasks-capability-negotiation tasks-wire-fields tasks-request-state-removal tasks-mrtr-input
        tasks-request-headers tasks-dispatch-and-envelope tasks-status-notifications tasks-required-task-error
        tasks-mrtr-composition
        """.split(),
        EXTENSION,
    ),
}
CLIENT = """
    initialize tools_call sse-retry auth/metadata-default auth/metadata-var1 auth/metadata-var2 auth/metadata-var3
    auth/scope-from-www-authenticate auth/scope-from-scopes-supported auth/scope-omitted-when-undefined
    auth/scope-step-up auth/scope-retry-limit auth/token-endpoint-auth-basic auth/token-endpoint-auth-post
    auth/token-endpoint-auth-none auth/pre-registration auth/2025-03-26-oauth-endpoint-fallback
    auth/resource-mismatch auth/offline-access-scope auth/offline-access-not-supported
""".split()
NOT_CLIENT = {
    "elicitation-sep1034-client-defaults": REFUSED,
    "auth/basic-cimd": BY_HAND_OR_ITSELF,
    "auth/2025-03-26-oauth-metadata-backcompat": WRONG_ISSUER,
    **dict.fromkeys(
        [
            "auth/client-credentials-jwt",
            "auth/client-credentials-basic",
            "auth/cross-app-access-complete-flow",
        ],
        EXTENSION,
    ),
}
CLIENT_NEXT = [
    *CLIENT,
    *"""
    request-metadata auth/2025-03-26-oauth-metadata-backcompat auth/authorization-server-migration
    auth/iss-supported auth/iss-not-advertised auth/iss-supported-missing auth/iss-wrong-issuer auth/iss-unexpected
    auth/iss-normalized auth/metadata-issuer-mismatch http-standard-headers http-custom-headers
    http-invalid-tool-headers json-schema-ref-no-deref
    """.split(),
]
NOT_CLIENT_NEXT = {
    "elicitation-sep1034-client-defaults": REFUSED,
    "sep-2322-client-request-state": REFUSED,
    "auth/basic-cimd": BY_HAND_OR_ITSELF,
    "json-schema-2020-12-preservation": WRITTEN_OUT,
    **dict.fromkeys(
        """
        auth/client-credentials-jwt auth/client-credentials-basic auth/enterprise-managed-authorization auth/dpop
        auth/dpop-nonce auth/wif-jwt-bearer sep-2640-client-no-prefetch sep-2640-client-verify-digest
        sep-2640-client-verify-size sep-2640-client-verify-frontmatter
        """.split(),
        EXTENSION,
    ),
}


def run_suite(suite: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [str(NODE), str(packages() / "node_modules" / suite), *arguments]
    paths = os.pathsep.join([str(ROOT / "tests"), str(ROOT)])
    return subprocess.run(
        command,
        capture_output=True,
        text=True,
        timeout=300,
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": paths},
    )


@pytest.fixture(scope="module")
def suite_url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("data")
    folder.chmod(0o700)
    loop, app = Elsewhere(), suite_app(folder)
    yield loop.run(app.__aenter__())
    loop.run(app.__aexit__(None, None, None))
    loop.close()


@pytest.mark.parametrize("suite", [RELEASED, NEXT], ids=["released", "next"])
def test_every_scenario_is_run_or_left_out_with_a_reason(suite: Path) -> None:
    listed: dict[str, set[str]] = {}
    kind = ""
    for line in run_suite(suite, "list").stdout.splitlines():
        if line.startswith("  - "):
            listed[kind].add(line.split()[1])
        elif line.strip():
            kind = line.split()[0].lower()
            listed[kind] = set()
    known = {
        RELEASED: ({*SERVER, *NOT_SERVER}, {*CLIENT, *NOT_CLIENT}),
        NEXT: ({*SERVER_NEXT, *NOT_SERVER_NEXT}, {*CLIENT_NEXT, *NOT_CLIENT_NEXT}),
    }
    assert (listed["server"], listed["client"]) == known[suite]


@pytest.mark.parametrize("scenario", SERVER)
def test_our_transport_conforms(suite_url: str, scenario: str) -> None:
    done = run_suite(RELEASED, "server", "--url", suite_url, "--scenario", scenario)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]


@pytest.mark.parametrize("scenario", SERVER_NEXT)
def test_our_transport_conforms_to_2026_07_28(suite_url: str, scenario: str) -> None:
    wanted = ("--scenario", scenario, "--spec-version", "2026-07-28")
    done = run_suite(NEXT, "server", "--url", suite_url, *wanted)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-2000:]
    assert "SKIPPED" not in done.stdout


@pytest.mark.parametrize(
    ("suite", "scenario"),
    [
        *(pytest.param(RELEASED, scenario, id=f"released-{scenario}") for scenario in CLIENT),
        *(pytest.param(NEXT, scenario, id=f"next-{scenario}") for scenario in CLIENT_NEXT),
    ],
)
def test_our_client_conforms(suite: Path, scenario: str) -> None:
    ours = f"{sys.executable} -m support.mcp_suite_client"
    done = run_suite(suite, "client", "--command", ours, "--scenario", scenario, "--timeout", "120000")
    assert done.returncode == 0, done.stdout[-4000:] + done.stderr[-2000:]
