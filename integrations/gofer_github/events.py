"""Every kind of event GitHub sends, and what becomes of it. Silence is explicit."""

from __future__ import annotations

MESSAGES = frozenset(
    {
        "issues",
        "issue_comment",
        "pull_request",
        "pull_request_review",
        "pull_request_review_comment",
        "check_suite",
        "check_run",
        "status",
    }
)
"""Kinds that can be, or wake, work."""

NOTED = {
    "ping": "the webhook was set up",
    "installation": "the App was installed, changed or removed",
    "installation_repositories": "the App's repositories changed",
    "repository": "a repository changed",
    "public": "a repository became public",
    "meta": "the webhook was removed",
    "github_app_authorization": "somebody withdrew their authorisation",
    "push": "pushes are looked at when they are needed",
    "create": "branches and tags are looked at when they are needed",
    "delete": "branches and tags are looked at when they are needed",
    "label": "only putting a label on something is a request",
    "workflow_run": "heard once for all as its check_suite",
    "workflow_job": "heard once for all as its check_suite",
    "pull_request_review_thread": "resolving a thread asks for nothing",
}
"""Kinds we know and keep, which ask for nothing."""

IGNORED = frozenset(
    {
        "branch_protection_rule", "code_scanning_alert", "commit_comment", "dependabot_alert", "deploy_key",
        "deployment", "deployment_review", "deployment_status", "discussion", "discussion_comment", "fork", "gollum",
        "marketplace_purchase", "member", "membership", "merge_group", "milestone", "org_block", "organization",
        "package", "page_build", "project", "project_card", "project_column", "projects_v2_item", "release",
        "repository_dispatch", "repository_import", "repository_vulnerability_alert", "security_advisory",
        "sponsorship", "star", "team", "team_add", "watch", "workflow_dispatch",
    }
)  # fmt: skip
"""Kinds that an App need not subscribe to; they are answered and left alone."""


def why_nothing(kind: str) -> str:
    """The note for a kind that is no message."""
    if kind in NOTED:
        return NOTED[kind]
    return "not listened to" if kind in IGNORED else "a kind of event that is not known yet"
