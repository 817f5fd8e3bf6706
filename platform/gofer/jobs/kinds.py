"""The kinds of job that belong to a conversation."""

from __future__ import annotations

ANSWER = "answer"
"""The kind of job in which an agent answers a conversation."""
RECEPTION = "reception"
"""The kind of job in which the platform itself answers: a command, a pressed button."""
APPROVAL = "approval"
"""The kind of job in which an owner is asked whether to let somebody in, or to listen somewhere."""
DELIVER = "deliver"
"""The kind of job that sends what the ledger holds for one binding."""
POST = "post"
"""The kind of job in which a program says something in a conversation, or asks a person there."""
SAY = "say"
"""The kind of job in which a schedule writes its message into a conversation."""
