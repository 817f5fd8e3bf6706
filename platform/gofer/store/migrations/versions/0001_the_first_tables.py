"""The first tables"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

SERIAL = sa.BigInteger().with_variant(sa.Integer(), "sqlite")


def _cascade(column: str) -> sa.ForeignKey:
    return sa.ForeignKey(column, ondelete="CASCADE")


def upgrade() -> None:
    op.create_table(
        "master_key",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("canary", sa.LargeBinary(), nullable=False),
        sa.Column("active", sa.Boolean(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
    )
    op.create_table(
        "spend",
        sa.Column("id", SERIAL, autoincrement=True, primary_key=True),
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("agent_id", sa.String(), nullable=False),
        sa.Column("conversation_id", sa.String(), nullable=False),
        sa.Column("connection_id", sa.String(), nullable=False),
        sa.Column("job_id", sa.BigInteger(), nullable=False),
        sa.Column("key", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("day", sa.String(), nullable=False),
        sa.Column("micros", sa.BigInteger(), nullable=False),
        sa.Column("settled", sa.Boolean(), nullable=False),
    )
    op.create_index(
        "spend_by_day", "spend", ["day", "agent_id", "model", "connection_id", "micros"], unique=False
    )
    op.create_index("spend_of_agent", "spend", ["agent_id", "day"], unique=False)
    op.create_index("spend_of_conversation", "spend", ["conversation_id"], unique=False)
    op.create_index("spend_once", "spend", ["job_id", "key"], unique=True)

    op.create_table(
        "worker",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("host", sa.String(), nullable=False),
        sa.Column("pid", sa.Integer(), nullable=False),
        sa.Column("roles", sa.String(), nullable=False),
        sa.Column("version", sa.String(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("seen_at", sa.Float(), nullable=False),
    )
    op.create_table(
        "workspace",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
    )
    op.create_table(
        "agent",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("workspace_id", sa.String(), sa.ForeignKey("workspace.id"), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("max_running", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
    )
    op.create_index("agent_by_name", "agent", ["workspace_id", "name"], unique=True)

    op.create_table(
        "connection",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("workspace_id", sa.String(), sa.ForeignKey("workspace.id"), nullable=False),
        sa.Column("integration", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("settings", sa.JSON(), nullable=False),
        sa.Column("max_running", sa.Integer(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
    )
    op.create_table(
        "conversation",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("workspace_id", sa.String(), sa.ForeignKey("workspace.id"), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("title", sa.String(), nullable=False),
        sa.Column("data_key", sa.LargeBinary(), nullable=True),
        sa.Column("last_seq", sa.BigInteger(), nullable=False),
        sa.Column("agent_id", sa.String(), nullable=True),
        sa.Column("model", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("purged_at", sa.Float(), nullable=True),
    )
    op.create_table(
        "member",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("workspace_id", sa.String(), sa.ForeignKey("workspace.id"), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("password", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("signed_in_at", sa.Float(), nullable=True),
    )
    op.create_index("member_by_name", "member", ["workspace_id", "name"], unique=True)
    op.create_table(
        "web_session",
        sa.Column("digest", sa.String(), primary_key=True),
        sa.Column("member_id", sa.String(), _cascade("member.id"), nullable=False),
        sa.Column("by", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("agent", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("seen_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
    )
    op.create_index("ix_web_session_member_id", "web_session", ["member_id"], unique=False)
    op.create_table(
        "api_token",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("member_id", sa.String(), _cascade("member.id"), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("scope", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=True),
        sa.Column("used_at", sa.Float(), nullable=True),
    )
    op.create_index("api_token_by_digest", "api_token", ["digest"], unique=True)
    op.create_index("ix_api_token_member_id", "api_token", ["member_id"], unique=False)
    op.create_table(
        "sign_in_link",
        sa.Column("digest", sa.String(), primary_key=True),
        sa.Column("member_id", sa.String(), _cascade("member.id"), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.Column("used_at", sa.Float(), nullable=True),
    )
    op.create_index("ix_sign_in_link_member_id", "sign_in_link", ["member_id"], unique=False)
    op.create_table(
        "sign_in_delay",
        sa.Column("key", sa.String(), primary_key=True),
        sa.Column("failures", sa.Integer(), nullable=False),
        sa.Column("failed_at", sa.Float(), nullable=False),
        sa.Column("until", sa.Float(), nullable=False),
    )
    op.create_table(
        "audit_entry",
        sa.Column("id", SERIAL, autoincrement=True, primary_key=True),
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("member_id", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("via", sa.String(), nullable=False),
        sa.Column("address", sa.String(), nullable=False),
        sa.Column("action", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "idempotency_key",
        sa.Column("member_id", sa.String(), primary_key=True),
        sa.Column("key", sa.String(), primary_key=True),
        sa.Column("fingerprint", sa.String(), nullable=False),
        sa.Column("status", sa.Integer(), nullable=False),
        sa.Column("answer", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
    )
    op.create_index("idempotency_key_by_time", "idempotency_key", ["created_at"], unique=False)
    op.create_table(
        "stranger",
        sa.Column("connection_id", sa.String(), primary_key=True),
        sa.Column("subject", sa.String(), primary_key=True),
        sa.Column("told_at", sa.Float(), nullable=True),
        sa.Column("guesses", sa.Integer(), nullable=False),
        sa.Column("guessing_since", sa.Float(), nullable=False),
    )
    op.create_table(
        "pairing",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("workspace_id", sa.String(), sa.ForeignKey("workspace.id"), nullable=False),
        sa.Column("connection_id", sa.String(), nullable=False),
        sa.Column("digest", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=False),
        sa.Column("used_at", sa.Float(), nullable=True),
        sa.Column("used_by", sa.String(), nullable=False),
        sa.Column("principal_id", sa.String(), nullable=True),
    )
    op.create_index("pairing_by_digest", "pairing", ["connection_id", "digest"], unique=True)
    op.create_table(
        "principal",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("workspace_id", sa.String(), sa.ForeignKey("workspace.id"), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("role", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
    )
    op.create_table(
        "schedule",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("workspace_id", sa.String(), sa.ForeignKey("workspace.id"), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("cron", sa.String(), nullable=False),
        sa.Column("timezone", sa.String(), nullable=False),
        sa.Column("missed", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("enabled", sa.Boolean(), nullable=False),
        sa.Column("next_at", sa.Float(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
    )
    op.create_index("schedule_by_name", "schedule", ["workspace_id", "name"], unique=True)

    op.create_table(
        "secret",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("workspace_id", sa.String(), sa.ForeignKey("workspace.id"), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("name", sa.String(), nullable=False),
        sa.Column("data_key", sa.LargeBinary(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("used_at", sa.Float(), nullable=True),
    )
    op.create_index("secret_by_name", "secret", ["workspace_id", "owner", "name"], unique=True)

    op.create_table(
        "binding",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("conversation_id", sa.String(), _cascade("conversation.id"), nullable=False),
        sa.Column("connection_id", sa.String(), sa.ForeignKey("connection.id"), nullable=False),
        sa.Column("ref", sa.String(), nullable=False),
    )
    op.create_index("binding_by_ref", "binding", ["connection_id", "ref"], unique=True)
    op.create_index("ix_binding_conversation_id", "binding", ["conversation_id"], unique=False)

    op.create_table(
        "blob",
        sa.Column("conversation_id", sa.String(), _cascade("conversation.id"), primary_key=True),
        sa.Column("hash", sa.String(), primary_key=True),
        sa.Column("media_type", sa.String(), nullable=False),
        sa.Column("size", sa.Integer(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
    )
    op.create_table(
        "delivery",
        sa.Column("id", SERIAL, autoincrement=True, primary_key=True),
        sa.Column("workspace_id", sa.String(), sa.ForeignKey("workspace.id"), nullable=False),
        sa.Column("connection_id", sa.String(), sa.ForeignKey("connection.id"), nullable=False),
        sa.Column("external_id", sa.String(), nullable=False),
        sa.Column("body_hash", sa.String(), nullable=False),
        sa.Column("source", sa.String(), nullable=False),
        sa.Column("event", sa.String(), nullable=False),
        sa.Column("note", sa.String(), nullable=False),
        sa.Column("conversation_id", sa.String(), _cascade("conversation.id"), nullable=True),
        sa.Column("message_seq", sa.Integer(), nullable=True),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("received_at", sa.Float(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "delivery_by_body", "delivery", ["connection_id", "body_hash", "received_at"], unique=False
    )
    op.create_index("delivery_by_external_id", "delivery", ["connection_id", "external_id"], unique=True)
    op.create_index("delivery_by_time", "delivery", ["received_at"], unique=False)
    op.create_index("delivery_of_connection", "delivery", ["connection_id", "id"], unique=False)
    op.create_index("ix_delivery_conversation_id", "delivery", ["conversation_id"], unique=False)

    op.create_table(
        "identity",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("workspace_id", sa.String(), sa.ForeignKey("workspace.id"), nullable=False),
        sa.Column("principal_id", sa.String(), sa.ForeignKey("principal.id"), nullable=False),
        sa.Column("integration", sa.String(), nullable=False),
        sa.Column("subject", sa.String(), nullable=False),
    )
    op.create_index(
        "identity_by_subject", "identity", ["workspace_id", "integration", "subject"], unique=True
    )
    op.create_index("ix_identity_principal_id", "identity", ["principal_id"], unique=False)

    op.create_table(
        "message",
        sa.Column("conversation_id", sa.String(), _cascade("conversation.id"), primary_key=True),
        sa.Column("seq", sa.BigInteger(), autoincrement=False, primary_key=True),
        sa.Column("author", sa.String(), nullable=False),
        sa.Column("addressed", sa.Boolean(), nullable=False),
        sa.Column("trust", sa.String(), nullable=False),
        sa.Column("event", sa.String(), nullable=False),
        sa.Column("connection_id", sa.String(), nullable=True),
        sa.Column("external_id", sa.String(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("admitted_at", sa.Float(), nullable=True),
        sa.Column("created_at", sa.Float(), nullable=False),
    )
    op.create_table(
        "participant",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("conversation_id", sa.String(), _cascade("conversation.id"), nullable=False),
        sa.Column("agent_id", sa.String(), sa.ForeignKey("agent.id"), nullable=False),
        sa.Column("read_seq", sa.BigInteger(), nullable=False),
        sa.Column("wake_seq", sa.BigInteger(), nullable=False),
        sa.Column("epoch_seq", sa.BigInteger(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("summary", sa.LargeBinary(), nullable=True),
    )
    op.create_index("participant_by_agent", "participant", ["conversation_id", "agent_id"], unique=True)
    op.create_index(
        "participant_wanted",
        "participant",
        ["id"],
        unique=False,
        sqlite_where=sa.text("wake_seq > read_seq"),
        postgresql_where=sa.text("wake_seq > read_seq"),
    )

    op.create_table(
        "route",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("workspace_id", sa.String(), sa.ForeignKey("workspace.id"), nullable=False),
        sa.Column("agent_id", sa.String(), sa.ForeignKey("agent.id"), nullable=False),
        sa.Column("connection_id", sa.String(), sa.ForeignKey("connection.id"), nullable=True),
        sa.Column("event", sa.String(), nullable=False),
        sa.Column("trigger", sa.String(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
    )
    op.create_index("ix_route_agent_id", "route", ["agent_id"], unique=False)
    op.create_index("ix_route_connection_id", "route", ["connection_id"], unique=False)

    op.create_table(
        "shell",
        sa.Column("conversation_id", sa.String(), _cascade("conversation.id"), primary_key=True),
        sa.Column("agent_id", sa.String(), primary_key=True),
        sa.Column("record", sa.JSON(), nullable=False),
        sa.Column("trust", sa.String(), nullable=False),
        sa.Column("used_at", sa.Float(), nullable=False),
    )
    op.create_table(
        "job",
        sa.Column("id", SERIAL, autoincrement=True, primary_key=True),
        sa.Column("workspace_id", sa.String(), sa.ForeignKey("workspace.id"), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("pool", sa.String(), nullable=False),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("lane", sa.String(), nullable=False),
        sa.Column("priority", sa.Integer(), nullable=False),
        sa.Column("run_at", sa.Float(), nullable=False),
        sa.Column("attempts", sa.Integer(), nullable=False),
        sa.Column("max_attempts", sa.Integer(), nullable=False),
        sa.Column("fence", sa.BigInteger(), nullable=False),
        sa.Column("owner", sa.String(), nullable=True),
        sa.Column("lease_until", sa.Float(), nullable=True),
        sa.Column("cancel_requested", sa.Boolean(), nullable=False),
        sa.Column("event_seq", sa.BigInteger(), nullable=False),
        sa.Column("conversation_id", sa.String(), _cascade("conversation.id"), nullable=True),
        sa.Column("participant_id", sa.String(), _cascade("participant.id"), nullable=True),
        sa.Column("agent_id", sa.String(), nullable=True),
        sa.Column("connection_id", sa.String(), nullable=True),
        sa.Column("covers_from", sa.BigInteger(), nullable=False),
        sa.Column("covers_to", sa.BigInteger(), nullable=True),
        sa.Column("payload", sa.JSON(), nullable=False),
        sa.Column("unique_key", sa.String(), nullable=True),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("finished_at", sa.Float(), nullable=True),
        sqlite_autoincrement=True,
    )
    op.create_index(
        "job_blocked",
        "job",
        ["lane", "id"],
        unique=False,
        sqlite_where=sa.text("state = 'blocked'"),
        postgresql_where=sa.text("state = 'blocked'"),
    )
    op.create_index(
        "job_finished",
        "job",
        ["finished_at"],
        unique=False,
        sqlite_where=sa.text("finished_at IS NOT NULL"),
        postgresql_where=sa.text("finished_at IS NOT NULL"),
    )
    op.create_index(
        "job_leased",
        "job",
        ["lease_until"],
        unique=False,
        sqlite_where=sa.text("state = 'running'"),
        postgresql_where=sa.text("state = 'running'"),
    )
    op.create_index(
        "job_ended_badly",
        "job",
        ["state", "id"],
        unique=False,
        sqlite_where=sa.text("state IN ('dead','cancelled')"),
        postgresql_where=sa.text("state IN ('dead','cancelled')"),
    )
    op.create_index(
        "job_of_agent",
        "job",
        ["agent_id", "id"],
        unique=False,
        sqlite_where=sa.text("agent_id IS NOT NULL"),
        postgresql_where=sa.text("agent_id IS NOT NULL"),
    )
    op.create_index(
        "job_of_connection",
        "job",
        ["connection_id", "id"],
        unique=False,
        sqlite_where=sa.text("connection_id IS NOT NULL"),
        postgresql_where=sa.text("connection_id IS NOT NULL"),
    )
    op.create_index("job_of_conversation", "job", ["conversation_id", "id"], unique=False)
    op.create_index(
        "job_one_live_per_lane",
        "job",
        ["lane"],
        unique=True,
        sqlite_where=sa.text("state IN ('ready','running','scheduled','waiting')"),
        postgresql_where=sa.text("state IN ('ready','running','scheduled','waiting')"),
    )
    op.create_index(
        "job_ready",
        "job",
        ["pool", "priority", "id"],
        unique=False,
        sqlite_where=sa.text("state = 'ready'"),
        postgresql_where=sa.text("state = 'ready'"),
    )
    op.create_index(
        "job_scheduled",
        "job",
        ["run_at"],
        unique=False,
        sqlite_where=sa.text("state = 'scheduled'"),
        postgresql_where=sa.text("state = 'scheduled'"),
    )
    op.create_index(
        "job_unique_key",
        "job",
        ["unique_key"],
        unique=True,
        sqlite_where=sa.text("unique_key IS NOT NULL"),
        postgresql_where=sa.text("unique_key IS NOT NULL"),
    )

    op.create_table(
        "attempt",
        sa.Column("job_id", SERIAL, _cascade("job.id"), primary_key=True),
        sa.Column("fence", sa.BigInteger(), autoincrement=False, primary_key=True),
        sa.Column("number", sa.Integer(), nullable=False),
        sa.Column("owner", sa.String(), nullable=False),
        sa.Column("started_at", sa.Float(), nullable=False),
        sa.Column("ended_at", sa.Float(), nullable=True),
        sa.Column("outcome", sa.String(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("cost", sa.Float(), nullable=False),
    )
    op.create_table(
        "event",
        sa.Column("id", SERIAL, autoincrement=True, primary_key=True),
        sa.Column("workspace_id", sa.String(), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("version", sa.Integer(), nullable=False),
        sa.Column("parent_id", sa.BigInteger(), nullable=True),
        sa.Column("conversation_id", sa.String(), _cascade("conversation.id"), nullable=True),
        sa.Column("job_id", sa.BigInteger(), _cascade("job.id"), nullable=True),
        sa.Column("seq", sa.BigInteger(), nullable=True),
        sa.Column("fence", sa.BigInteger(), nullable=True),
        sa.Column("delivery_id", sa.BigInteger(), nullable=True),
        sa.Column("reply_id", sa.BigInteger(), nullable=True),
        sa.Column("data", sa.JSON(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("tx", sa.BigInteger(), nullable=False),
        sa.Column("at", sa.Float(), nullable=False),
        sqlite_autoincrement=True,
    )
    op.create_index("event_in_order", "event", ["tx", "id"], unique=False)
    op.create_index("event_of_conversation", "event", ["conversation_id", "id"], unique=False)
    op.create_index("event_of_job", "event", ["job_id", "seq"], unique=True)
    op.create_index(
        "event_of_no_job",
        "event",
        ["at"],
        unique=False,
        sqlite_where=sa.text("job_id IS NULL"),
        postgresql_where=sa.text("job_id IS NULL"),
    )

    op.create_table(
        "showing",
        sa.Column("job_id", SERIAL, _cascade("job.id"), autoincrement=True, primary_key=True),
        sa.Column("connection_id", sa.String(), nullable=False),
        sa.Column("ref", sa.String(), nullable=False),
        sa.Column("external_id", sa.String(), nullable=False),
    )
    op.create_table(
        "question",
        sa.Column("id", sa.String(), primary_key=True),
        sa.Column("job_id", sa.BigInteger(), _cascade("job.id"), nullable=False),
        sa.Column("call_id", sa.String(), nullable=False),
        sa.Column("conversation_id", sa.String(), _cascade("conversation.id"), nullable=True),
        sa.Column("asked_of", sa.String(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("choices", sa.LargeBinary(), nullable=True),
        sa.Column("answer", sa.LargeBinary(), nullable=True),
        sa.Column("asked_at", sa.Float(), nullable=False),
        sa.Column("expires_at", sa.Float(), nullable=True),
        sa.Column("answered_at", sa.Float(), nullable=True),
    )
    op.create_index("ix_question_job_id", "question", ["job_id"], unique=False)
    op.create_index(
        "question_open",
        "question",
        ["expires_at"],
        unique=False,
        sqlite_where=sa.text("answered_at IS NULL"),
        postgresql_where=sa.text("answered_at IS NULL"),
    )

    op.create_table(
        "reply",
        sa.Column("id", SERIAL, autoincrement=True, primary_key=True),
        sa.Column("workspace_id", sa.String(), sa.ForeignKey("workspace.id"), nullable=False),
        sa.Column("conversation_id", sa.String(), _cascade("conversation.id"), nullable=False),
        sa.Column("binding_id", sa.String(), _cascade("binding.id"), nullable=False),
        sa.Column("job_id", sa.BigInteger(), _cascade("job.id"), nullable=False),
        sa.Column("kind", sa.String(), nullable=False),
        sa.Column("part", sa.Integer(), nullable=False),
        sa.Column("parts", sa.Integer(), nullable=False),
        sa.Column("reply_to", sa.String(), nullable=False),
        sa.Column("sealed", sa.LargeBinary(), nullable=True),
        sa.Column("state", sa.String(), nullable=False),
        sa.Column("external_id", sa.String(), nullable=False),
        sa.Column("tries", sa.Integer(), nullable=False),
        sa.Column("reason", sa.String(), nullable=False),
        sa.Column("created_at", sa.Float(), nullable=False),
        sa.Column("sent_at", sa.Float(), nullable=True),
        sa.Column("confirm_at", sa.Float(), nullable=True),
        sqlite_autoincrement=True,
    )
    op.create_index("reply_of_conversation", "reply", ["conversation_id", "id"], unique=False)
    op.create_index("reply_once", "reply", ["job_id", "kind", "part"], unique=True)
    op.create_index(
        "reply_to_confirm",
        "reply",
        ["binding_id"],
        unique=False,
        sqlite_where=sa.text("confirm_at IS NOT NULL"),
        postgresql_where=sa.text("confirm_at IS NOT NULL"),
    )
    op.create_index(
        "reply_unsent",
        "reply",
        ["binding_id", "id"],
        unique=False,
        sqlite_where=sa.text("state IN ('planned','placed')"),
        postgresql_where=sa.text("state IN ('planned','placed')"),
    )
