"""Who is there, and what they may do: members, sessions, tokens, the guard before every request."""

from __future__ import annotations

from gofer.web.access.audit import audited, note, words_read
from gofer.web.access.entry import routes
from gofer.web.access.guard import CSRF_FIELD, CSRF_HEADER, FromSocket, Guard, csrf_of, require
from gofer.web.access.headers import POLICY, SecurityHeaders
from gofer.web.access.lasting import check_still, watch_over
from gofer.web.access.visitor import NotSignedIn, Role, Scope, Visitor, caller_of, visitor_of

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
    "audited",
    "caller_of",
    "check_still",
    "csrf_of",
    "note",
    "require",
    "routes",
    "visitor_of",
    "watch_over",
    "words_read",
]
