"""A sandbox's network: closed, but for what its caller allows."""

from gofer_sandbox.network.caller import Callers
from gofer_sandbox.network.credential import Credential
from gofer_sandbox.network.egress import BlockedRequest, Egress
from gofer_sandbox.network.errors import EgressUnavailable, Unanswered
from gofer_sandbox.network.http import EgressLimits
from gofer_sandbox.network.rules import AllowedHost, GitAccess, Rule

__all__ = [
    "AllowedHost",
    "BlockedRequest",
    "Callers",
    "Credential",
    "Egress",
    "EgressLimits",
    "EgressUnavailable",
    "GitAccess",
    "Rule",
    "Unanswered",
]
