"""Who is there, and what they may do: members, sessions, tokens, the guard before every request."""

from __future__ import annotations

from gofer.web.auth.audit import audited, audited_as, note, record_order, record_reading
from gofer.web.auth.guard import (
    CSRF_FIELD,
    CSRF_HEADER,
    FromSocket,
    Guard,
    check_still,
    csrf_of,
    require,
    watch_over,
)
from gofer.web.auth.headers import POLICY, SecurityHeaders
from gofer.web.auth.login import routes
from gofer.web.auth.principal import NotSignedIn, Role, Scope, Visitor, actor, caller_of, visitor_of
from gofer.web.auth.privacy import is_readable, no_conversation, open_to, readable, require_readable

__all__ = [
    "CSRF_FIELD",
    "CSRF_HEADER",
    "POLICY",
    "FromSocket",
    "Guard",
    "NotSignedIn",
    "Role",
    "Scope",
    "SecurityHeaders",
    "Visitor",
    "actor",
    "audited",
    "audited_as",
    "caller_of",
    "check_still",
    "csrf_of",
    "is_readable",
    "no_conversation",
    "note",
    "open_to",
    "readable",
    "record_order",
    "record_reading",
    "require",
    "require_readable",
    "routes",
    "visitor_of",
    "watch_over",
]
