"""The stand-in's rows as the JSON of GitHub's API and webhooks: the fields that GitHub always sends, no others."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from gofer_standins.github.world import (
    App,
    CheckRun,
    Comment,
    Delivery,
    GitHubWorld,
    Installation,
    Issue,
    Repository,
    Review,
    User,
)


def user(one: User) -> dict[str, Any]:
    return {"login": one.login, "id": one.id, "type": one.type, "site_admin": False}


def repository(one: Repository, base: str) -> dict[str, Any]:
    owner, _, name = one.full_name.partition("/")
    return {
        "id": one.id, "name": name, "full_name": one.full_name, "private": True, "fork": False,
        "archived": one.archived, "owner": {"login": owner, "id": one.owner, "type": "Organization"},
        "default_branch": one.default_branch, "html_url": f"{base}/{one.full_name}",
        "clone_url": f"{base}/{one.full_name}.git",
    }  # fmt: skip


def issue(one: Issue, of: Repository, base: str) -> dict[str, Any]:
    kind = "pull" if one.head else "issues"
    shown: dict[str, Any] = {
        "number": one.number, "title": one.title, "body": one.body or None, "user": user(one.user),
        "state": one.state, "created_at": one.created_at, "updated_at": one.created_at,
        "labels": [{"name": name} for name in one.labels], "draft": one.draft,
        "html_url": f"{base}/{of.full_name}/{kind}/{one.number}", "id": of.id * 10_000 + one.number,
        "comments": sum(1 for each in of.comments.values() if each.number == one.number), "locked": one.locked,
    }  # fmt: skip
    if one.head:
        shown["pull_request"] = {"url": f"{base}/api/v3/repos/{of.full_name}/pulls/{one.number}"}
    return shown


def pull(one: Issue, of: Repository, base: str, sha: str) -> dict[str, Any]:
    shown = issue(one, of, base)
    del shown["pull_request"]
    fork = one.head_repository != of.full_name
    head = {"full_name": one.head_repository} if fork else repository(of, base)
    return {
        **shown,
        "head": {"ref": one.head, "sha": sha or one.merged_sha, "repo": head},
        "base": {"ref": one.base, "repo": repository(of, base)},
        "requested_reviewers": [{"login": login} for login in one.reviewers],
        "merged_at": one.merged_at or None,
    }


def comment(one: Comment, of: Repository, base: str) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": one.id, "body": one.body, "user": None if one.ghost else user(one.user), "created_at": one.created_at,
        "updated_at": one.updated_at or one.created_at,
        "html_url": f"{base}/{of.full_name}/issues/{one.number}#issuecomment-{one.id}",
    }  # fmt: skip
    if one.path:
        shown |= {
            "path": one.path, "line": one.line or 1, "side": one.side, "diff_hunk": one.hunk,
            "start_line": one.start_line or None, "start_side": one.side if one.start_line else None,
            "original_line": one.line or 1, "pull_request_review_id": one.review,
            "pull_request_url": f"{base}/api/v3/repos/{of.full_name}/pulls/{one.number}",
        }  # fmt: skip
        if one.thread != one.id:
            shown["in_reply_to_id"] = one.thread
    return shown


def review(one: Review) -> dict[str, Any]:
    return {
        "id": one.id, "body": one.body, "state": one.state, "user": user(one.user),
        "submitted_at": one.submitted_at, "commit_id": one.commit_id,
    }  # fmt: skip


def check_suite(
    of: Repository, number: int, sha: str, conclusion: str, by: App, sha_of: Callable[[Repository, str], str]
) -> dict[str, Any]:
    """All checks of one App on a commit, which have ended."""
    pulls = [one for one in of.issues.values() if one.head and sha_of(of, one.head) == sha]
    return {
        "id": number, "head_sha": sha, "head_branch": pulls[0].head if pulls else None, "status": "completed",
        "conclusion": conclusion, "pull_requests": [{"number": one.number} for one in pulls],
        "app": {"id": by.id, "slug": by.slug, "name": by.slug},
    }  # fmt: skip


def check_run(one: CheckRun) -> dict[str, Any]:
    return {
        "id": one.id, "name": one.name, "head_sha": one.head_sha, "status": one.status,
        "conclusion": one.conclusion, "external_id": one.external_id, "output": one.output,
    }  # fmt: skip


def delivery(one: Delivery, *, whole: bool = False) -> dict[str, Any]:
    shown: dict[str, Any] = {
        "id": one.id, "guid": one.guid, "delivered_at": one.delivered_at, "redelivery": one.redelivery,
        "status": "OK" if 200 <= one.status_code < 300 else "failed", "status_code": one.status_code,
        "event": one.event, "action": one.payload.get("action"),
    }  # fmt: skip
    if whole:
        shown["request"] = {"headers": {"X-GitHub-Event": one.event}, "payload": one.payload}
    return shown


def installation(one: Installation) -> dict[str, Any]:
    owner = min(one.repositories, default="somebody/none").partition("/")[0]
    return {
        "id": one.id, "account": {"login": owner, "id": 1, "type": "Organization"}, "permissions": one.permissions,
        "repository_selection": "selected", "suspended_at": "2026-01-01T00:00:00Z" if one.suspended else None,
    }  # fmt: skip


def app(world: GitHubWorld, app_id: int, page: str) -> dict[str, Any]:
    one = world.apps[app_id]
    installed = sum(1 for place in world.installations.values() if place.app.id == app_id)
    return {
        "id": one.id, "slug": one.slug, "name": one.slug, "permissions": one.permissions, "events": one.events,
        "installations_count": installed, "html_url": page,
    }  # fmt: skip
