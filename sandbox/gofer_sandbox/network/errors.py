"""What can go wrong with a sandbox's network."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass

from gofer_sandbox.errors import GateBlocked, SandboxError


class EgressUnavailable(SandboxError):
    """The proxy could not be put into the sandbox's network namespace."""


class PortTaken(EgressUnavailable, GateBlocked):
    """A process in the sandbox listens where the proxy should."""


class Unanswered(Exception):
    """Whoever was asked for a credential, or about a push, cannot say now. Raised by those who are asked; the
    message goes to the program inside."""


@dataclass(eq=False)
class ProxyRefused(Exception):
    """One request is refused: the status and the sentence its program gets, and the caller's report.

    `report`, if any, is the refusal in git's own words, sent instead of the sentence as `report_type`. It never
    leaves this package.
    """

    reason: str
    _: KW_ONLY
    status: int = 403
    host: str = ""
    port: int = 0
    path: str = ""
    report: bytes | None = None
    report_type: str = "application/x-git-receive-pack-result"

    def __str__(self) -> str:
        return self.reason
