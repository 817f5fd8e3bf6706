"""The contract between Gofer and an integration.

An Integration is stateless code that speaks with one outside service. A Connection is one configured account of it.
Subclass `Integration`, export an instance through the entry point group `gofer.integrations`, and Gofer does the rest:
it receives, dedupes, stores and routes messages, runs the agent, and keeps the ledger of what was sent.
`gofer_hello` is the smallest complete example; docs/integrations/hello.md walks through it.

`verify`, `parse` and `split` are pure: no network, clock or database. They may run in any thread. Async methods may
raise `gofer.errors.Temporary` (tried again, after `retry_after` if given) or `gofer.errors.Permanent` (given up,
visibly).

Read `core.py` first, then `messages.py`. `capabilities.py` has what only some services can do and what a
method gets of its connection, `shell_access.py` what a run's shell gets.
"""

from __future__ import annotations

from typing import Any

from gofer.integration.capabilities import (
    ConnectionContext,
    Health,
    Inflow,
    JobScope,
    NoSettings,
    People,
    ProgressDisplay,
    QuestionButtons,
    RunSupport,
    SecretField,
    Setup,
    SignUp,
)
from gofer.integration.core import Integration
from gofer.integration.messages import (
    COMMANDS,
    MAX_SIGNATURE_AGE,
    OLD_NAMES,
    Admission,
    Attachment,
    Author,
    Command,
    File,
    Incoming,
    Outgoing,
    Parsed,
    Payload,
    PlanItem,
    Progress,
    Request,
    Role,
    TrustLevel,
    Unread,
    sign_body,
    warn_of_name,
)
from gofer.integration.shell_access import EgressRule, Password, ShellAccess
from gofer.sanitize import defuse

__all__ = [
    "COMMANDS",
    "MAX_SIGNATURE_AGE",
    "Admission",
    "Attachment",
    "Author",
    "Command",
    "ConnectionContext",
    "EgressRule",
    "File",
    "Health",
    "Incoming",
    "Inflow",
    "Integration",
    "JobScope",
    "NoSettings",
    "Outgoing",
    "Parsed",
    "Password",
    "Payload",
    "People",
    "PlanItem",
    "Progress",
    "ProgressDisplay",
    "QuestionButtons",
    "Request",
    "Role",
    "RunSupport",
    "SecretField",
    "Setup",
    "ShellAccess",
    "SignUp",
    "TrustLevel",
    "Unread",
    "defuse",
    "sign_body",
]


def __getattr__(name: str) -> Any:
    if name in OLD_NAMES:
        return globals()[warn_of_name(name)]
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
