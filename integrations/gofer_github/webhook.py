"""Turn a webhook's payload into a message, or into the reason why there is none. Pure."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field, replace
from typing import Any

from gofer.errors import Malformed
from gofer.integration import COMMANDS, Author, ConnectionContext, Incoming, Parsed, Payload, Request
from gofer_github import delegated_tools, markdown, marks, reviews, workflows
from gofer_github.place import Place, Repository, is_repository
from gofer_github.settings import Settings
from gofer_github.triggers import NOT_AT_ALL, spoken

_COMMANDS = frozenset(command.name for command in COMMANDS)
_UNIQUE_ID = re.compile(r"(?:(?:comment|review|review_comment)-)?[0-9]+")
"""Ids of events that happen once and have an id at GitHub."""
_MAX_QUOTE = 20_000
_MAX_TITLE = 1_000
PLAN = "plan"
"""The workflow that the plan's label asks for."""
_RELAYED = "(What a bot says may be what strangers told it.)"


@dataclass(frozen=True, slots=True)
class _Words:
    """What an event says, before we know whether it addresses us."""

    text: str
    external_id: str
    title: str = ""
    """The title of an issue or pull request: part of the request, but not Markdown."""
    trigger: str = ""
    """label, assignment …: what addressed us if no words did."""
    place: str = ""
    """The code above a review comment, written by the author of the pull request."""
    note: str = ""
    """Our own facts about it, for the model."""
    group_id: str = ""
    """The review that it belongs to."""
    otherwise: str = ""
    """Its trigger when its text does not address us."""
    facts: dict[str, Any] = field(default_factory=dict)


def parse(request: Request, account: ConnectionContext) -> Parsed:
    """Read a verified webhook."""
    delivery = request.text_header("x-github-delivery")
    kind = request.text_header("x-github-event")
    if not delivery or not kind:
        raise Malformed("A webhook of GitHub has the headers X-GitHub-Delivery and X-GitHub-Event.")
    if request.body.startswith(b"payload="):
        raise Malformed("The webhook's content type must be application/json; choose it in its settings.")
    payload = Payload.of(request.json())
    action = payload.text("action")
    event = f"{kind}.{action}" if action else kind
    if kind not in MESSAGES:
        moved = _renamed(event, payload)
        id_ = _body_id(request.body) if moved is not None else ""
        return Parsed(delivery, event[:200], note=why_nothing(kind), message_id=id_, moved=moved)
    settings = Settings.model_validate(account.settings)
    delegated = _delegated_request(event, payload, account, settings)
    if delegated is not None:
        message: Incoming | str = _delegated_message(payload, account, delegated)
    else:
        message = _message(kind, action, payload, account, delivery)
    if isinstance(message, str):
        closed = _closed(kind, action, payload)
        id_ = _body_id(request.body) if closed is not None else ""
        return Parsed(delivery, event[:200], note=message, message_id=id_, closed=closed)
    id_ = f"errand {delegated.id}" if delegated is not None else _message_id(message, request.body)
    return Parsed(delivery, event[:200], message, message_id=id_)


def _message_id(message: Incoming, body: bytes) -> str:
    """A unique id from the signed body: the message's id or, without one, the hash of the body."""
    if _UNIQUE_ID.fullmatch(message.external_id):
        return f"{message.stable_id} {message.external_id}"
    return _body_id(body)


def _body_id(body: bytes) -> str:
    return f"body {hashlib.sha256(body).hexdigest()}"


def _closed(kind: str, action: str, payload: Payload) -> tuple[str, bool] | None:
    """The issue or pull request that was closed or opened again, and which."""
    if kind not in ("issues", "pull_request") or action not in ("closed", "reopened"):
        return None
    repository, number = payload.child("repository").text("full_name"), _subject(payload).number("number")
    if not is_repository(repository) or number is None:
        return None
    return f"{repository}#{number}", action == "closed"


def _renamed(event: str, payload: Payload) -> tuple[str, str] | None:
    """The old and the new name of a renamed repository. A repository with a new owner does not count: other people may
    write to it."""
    if event != "repository.renamed":
        return None
    new = payload.child("repository").text("full_name")
    name = payload.child("changes").child("repository").child("name").text("from")
    old = f"{new.partition('/')[0]}/{name}"
    return (old, new) if is_repository(old) and is_repository(new) and old != new else None


def _message(
    kind: str, action: str, payload: Payload, account: ConnectionContext, delivery: str
) -> Incoming | str:
    settings = Settings.model_validate(account.settings)
    repository = payload.child("repository").required_text("full_name")
    sender = payload.child("sender")
    login = sender.required_text("login")
    if not is_repository(repository):
        raise Malformed("The event's repository has an impossible name.")
    if not settings.covers(repository):
        return f"{repository} is not among the connection's repositories"
    if kind in ("check_suite", "check_run") and action == "rerequested":
        return _rerun(payload.child(kind), payload, settings, repository, delivery)
    if kind == "check_run":
        return "heard once for all as its check_suite"
    if kind == "check_suite":
        return _failing(payload, settings, repository)
    if kind == "status":
        return _failing_status(payload, settings, repository)
    if settings.app_id is not None and (settings.is_us(login) or settings.wrote(login)):
        return "our own doing"
    if _is_bot(sender) and login not in settings.allowed_bots:
        return "bots are not heard"
    said = _words(kind, action, payload, settings, delivery)
    if isinstance(said, str):
        return said
    if _marked(account, payload, repository, said.text):
        return "our own words"
    if said.trigger == workflows.RULE_TRIGGER and (reason := _no_rule(payload, settings, said, login)):
        return reason
    return _incoming(kind, payload, account, repository, said)


def _no_rule(payload: Payload, settings: Settings, said: _Words, login: str) -> str:
    """Why no rule applies; empty when one may. With a plain token its owner and we have the same login, so what may be
    our own action counts as ours: a rule that pushes or labels must not trigger itself."""
    if workflows.RULE_TRIGGER not in settings.triggers:
        return "rules are not listened to"
    branch = payload.child("pull_request").child("head").text("ref")
    ours = said.facts["occasion"] == "label" or branch.startswith(settings.branch_prefix)
    return "perhaps our own doing" if settings.wrote(login) and ours else ""


def _marked(account: ConnectionContext, payload: Payload, repository: str, text: str) -> tuple[str, ...]:
    """The words of a text's hidden line, made by us for this place or for an issue without a number."""
    signed = payload.child("repository")
    known = Repository(repository, signed.child("owner").number("id") or 0, signed.number("id") or 0)
    here = Place(known, _subject(payload).number("number") or 0)
    return marks.words(account, here, text) or marks.words(account, marks.elsewhere(known), text)


def _delegated_request(
    event: str, payload: Payload, account: ConnectionContext, settings: Settings
) -> delegated_tools.DelegatedRequest | None:
    """Who asked us elsewhere to open this issue; None when nobody did."""
    issue = payload.child("issue")
    if event != "issues.opened" or not settings.wrote(payload.child("sender").text("login")):
        return None
    repository = payload.child("repository").required_text("full_name")
    if not is_repository(repository) or not settings.covers(repository):
        return None
    return delegated_tools.asked_by(account, repository, issue.text("title"), issue.text("body"))


def _delegated_message(
    payload: Payload, account: ConnectionContext, delegated: delegated_tools.DelegatedRequest
) -> Incoming:
    """The request, in the name of the person who asked."""
    issue = {**payload.child("issue").value, "body": marks.without(payload.child("issue").text("body"))}
    person = {"id": delegated.subject, "login": delegated.login, "type": "User"}
    theirs = Payload({**payload.value, "issue": issue, "sender": person})
    said = replace(_opened(Payload(issue)), trigger="errand")
    return _incoming("issues", theirs, account, payload.child("repository").required_text("full_name"), said)


def _is_bot(sender: Payload) -> bool:
    return sender.text("type").lower() == "bot" or sender.text("login").endswith("[bot]")


def _words(kind: str, action: str, payload: Payload, settings: Settings, delivery: str) -> _Words | str:
    """What the sender says with an event, or why nothing."""
    if action == "edited":
        return "text that is edited after it was said is not used"
    match kind, action:
        case (("issues" | "pull_request"), "opened"):
            facts = {"occasion": "opened", "draft": bool(_subject(payload).value.get("draft"))}
            return replace(_opened(_subject(payload)), otherwise=workflows.RULE_TRIGGER, facts=facts)
        case "pull_request", ("ready_for_review" | "synchronize"):
            return _changed(action, payload, delivery)
        case "issue_comment", "created":
            return _comment(payload.child("comment"), "comment")
        case "pull_request_review", "submitted":
            return _review(payload, settings)
        case "pull_request_review_comment", "created":
            return _review_comment(payload.child("comment"))
        case (("issues" | "pull_request"), ("labeled" | "assigned" | "review_requested")):
            return _gesture(action, payload, settings, delivery)
        case _:
            return "nothing is asked for"


def _opened(subject: Payload) -> _Words:
    return _Words(subject.text("body"), str(subject.required_number("number")), subject.text("title"))


def _comment(comment: Payload, what: str) -> _Words:
    return _Words(
        comment.text("body"),
        f"{what}-{comment.required_number('id')}",
        facts={"comment": comment.value["id"]},
    )


def _review(payload: Payload, settings: Settings) -> _Words | str:
    """A review as a whole; its line comments are separate events. Changes requested on our own pull request need no
    mention."""
    review = payload.child("review")
    said = _comment(review, "review")
    words, wanted = said.text, review.text("state").lower() == "changes_requested"
    pull = payload.child("pull_request")
    ours = settings.wrote(pull.child("user").text("login"))
    if settings.app_id is None:  # whoever the token belongs to makes pull requests, too
        ours = ours and pull.child("head").text("ref").startswith(settings.branch_prefix)
    facts = {**said.facts, "review": review.value["id"]}
    joins = f"review-{review.value['id']}"
    if wanted and ours and spoken(words, settings.handle) == NOT_AT_ALL:
        asks = words if words.strip() else "Changes are requested; see the comments on lines."
        note = "Changes are requested of this pull request of yours."
        return _Words(
            asks, said.external_id, trigger="changes_requested", facts=facts, group_id=joins, note=note
        )
    if not words.strip():
        return "a review without words of its own"
    return replace(said, facts=facts, group_id=joins)


def _review_comment(comment: Payload) -> _Words:
    id_ = comment.required_number("id")
    thread = reviews.number(comment.value.get("in_reply_to_id"))
    review = reviews.number(comment.value.get("pull_request_review_id"))
    where = reviews.place_facts(comment.value)
    facts = {"review_comment": id_, "thread": thread or id_, "review": review, "where": where}
    place = f"Review comment {id_} is on {reviews.place(comment.value)}:\n{reviews.hunk(comment.value)}"
    note = f"This is review comment {id_}{f', in answer to {thread}' if thread else ''}; its place is quoted below."
    return _Words(
        comment.text("body"), f"review_comment-{id_}", facts=facts, place=place, note=note,
        group_id=f"review-{review}" if review else "",
    )  # fmt: skip


def _changed(action: str, payload: Payload, delivery: str) -> _Words:
    """A pull request is ready or has new commits: it says nothing, but a rule may react."""
    occasion = "opened" if action == "ready_for_review" else "synchronize"
    sha = markdown.line(payload.child("pull_request").child("head").text("sha"), 12)
    did = "marked this pull request as ready for review" if occasion == "opened" else f"pushed {sha}"
    return _Words(
        f"({markdown.line(payload.child('sender').text('login'), 60)} {did}.)", f"{action}-{delivery}",
        trigger=workflows.RULE_TRIGGER, facts={"occasion": occasion},
    )  # fmt: skip


def _gesture(action: str, payload: Payload, settings: Settings, delivery: str) -> _Words | str:
    """A label, an assignment or a review request, if it addresses us."""
    who = payload.child("assignee" if action == "assigned" else "requested_reviewer").text("login")
    name = payload.child("label").text("name")
    if action == "labeled":
        if name.lower() == settings.plan_label.lower():
            asks, facts = "Please make a plan for this.", {"workflow": PLAN}
            return _Words(asks, f"label-{delivery}", trigger="label", facts=facts)
        if name.lower() != settings.label.lower():
            sent = markdown.line(payload.child("sender").text("login"), 60)
            said = f"({sent} put the label {markdown.line(name, 60)} on this.)"
            facts = {"occasion": "label", "label": markdown.line(name, 60)}
            return _Words(said, f"label-{delivery}", trigger=workflows.RULE_TRIGGER, facts=facts)
    elif not (who and settings.is_us(who)):
        return "a person that is not us"
    trigger = {"labeled": "label", "assigned": "assignment", "review_requested": "review_request"}[action]
    asks = "Please review this pull request." if trigger == "review_request" else "Please work on this."
    return _Words(asks, f"{trigger}-{delivery}", trigger=trigger)


def _subject(payload: Payload) -> Payload:
    return payload.child("pull_request") or payload.child("issue")


def _titled(title: str, body: str) -> str:
    return f"{title}\n\n{body}".strip("\n")


def _as_seen(title: str, body: str) -> str:
    return _titled(markdown.line(title, _MAX_TITLE), markdown.clean(body))


def _incoming(
    kind: str, payload: Payload, account: ConnectionContext, repository: str, said: _Words
) -> Incoming:
    settings = Settings.model_validate(account.settings)
    subject = _subject(payload)
    number = subject.required_number("number")
    sender = payload.child("sender")
    pull = kind.startswith("pull_request") or bool(subject.child("pull_request"))
    words = spoken(_titled(said.title, said.text), settings.handle) if not said.trigger else NOT_AT_ALL
    trigger = said.trigger or words.trigger or said.otherwise
    command = words.command if words.command in _COMMANDS else ""
    ruled = trigger == workflows.RULE_TRIGGER
    return Incoming(
        conversation=f"{repository}#{number}",
        author=Author(str(sender.required_number("id")), sender.text("login"), _is_bot(sender)),
        text="\n\n".join(filter(None, (_as_seen(said.title, said.text), said.note and f"({said.note})"))),
        addressed=bool(trigger) and not command and trigger in settings.triggers,
        kind="pull" if pull else "issue",
        title=markdown.line(subject.text("title")),
        event=kind,
        trigger=trigger or "any",
        external_id=said.external_id,
        control=command if command in ("stop", "new") else "",  # type: ignore[arg-type]
        command=command,
        arguments=words.arguments if command else "",
        quoted="\n\n".join(
            filter(None, (said.place, _quoted(subject, said) if trigger and not ruled else ""))
        ),
        group_id=said.group_id,
        quote_is_ours=_by_us_or(sender, subject.child("user"), settings)
        and marks.NARROWED not in _marked(account, payload, repository, subject.text("body")),
        facts={
            **_facts(payload, subject, repository),
            "word": words.command,
            **said.facts,
            **(_for_rules(sender, subject) if ruled else {}),
        },
        stable_id=_stable_id(payload, number),
    )


def _for_rules(sender: Payload, subject: Payload) -> dict[str, Any]:
    """Facts for rules: the state of the issue or pull request, and its author."""
    author = markdown.line(subject.child("user").text("login"), 60)
    shown = _as_seen(subject.text("title"), subject.text("body"))
    return {
        "subject": f"{author} wrote:\n{shown}"[:_MAX_QUOTE],
        "subject_is_senders": subject.child("user").value.get("id") == sender.value.get("id"),
        "draft": bool(subject.value.get("draft")),
    }


def _stable_id(payload: Payload, number: int) -> str:
    signed = payload.child("repository")
    owner, id_ = signed.child("owner").required_number("id"), signed.required_number("id")
    return Place(Repository(signed.text("full_name"), owner, id_), number).stable_id


def _by_us_or(sender: Payload, author: Payload, settings: Settings) -> bool:
    """Whether the requester, or we, wrote the issue or pull request."""
    theirs = author.value.get("id") == sender.value.get("id")
    return (theirs or settings.wrote(author.text("login"))) and not _is_bot(sender)


def _quoted(subject: Payload, said: _Words) -> str:
    """The text of the issue or pull request at the time of the request."""
    if said.external_id == str(subject.value.get("number")):  # the request is the issue itself
        return _RELAYED if _is_bot(subject.child("user")) else ""
    author = markdown.line(subject.child("user").text("login"), 60)
    return f"{author} wrote:\n{_as_seen(subject.text('title'), subject.text('body'))}"[:_MAX_QUOTE]


def _facts(payload: Payload, subject: Payload, repository: str) -> dict[str, Any]:
    head, base = subject.child("head"), subject.child("base")
    return {
        "repository": repository,
        "number": subject.value["number"],
        "login": payload.child("sender").text("login"),
        "sender": payload.child("sender").value["id"],
        "default_branch": payload.child("repository").text("default_branch"),
        "head": head.text("ref"),
        "sha": head.text("sha"),
        "fork": bool(head) and head.child("repo").text("full_name") != base.child("repo").text("full_name"),
        "title": markdown.line(subject.text("title")),
        "body": hashlib.sha256(subject.text("body").encode("utf-8", "replace")).hexdigest(),
        # Later edits are not part of the request.
        "asked_at": payload.child("comment").text("created_at")
        or payload.child("review").text("submitted_at")
        or subject.text("updated_at"),
    }


def _failing(payload: Payload, settings: Settings, repository: str) -> Incoming | str:
    """A failed check suite on our own branch, once for all its checks."""
    suite = payload.child("check_suite")
    branch = suite.text("head_branch")
    pulls = suite.children("pull_requests")
    if settings.app_id is not None and suite.child("app").value.get("id") == settings.app_id:
        return "our own checks"
    if payload.text("action") != "completed" or suite.text("conclusion") not in ("failure", "timed_out"):
        return "checks that did not fail ask for nothing"
    if not branch.startswith(settings.branch_prefix) or not pulls:
        return "failing checks on a branch that is not ours"
    number, sha = pulls[0].required_number("number"), suite.required_text("head_sha")
    what = f"The checks on {markdown.line(branch)}"
    message = _failed(payload, settings, repository, number, branch, sha, what)
    return replace(
        message, kind="pull", event="check_suite", external_id=f"check_suite-{suite.required_number('id')}"
    )


def _failing_status(payload: Payload, settings: Settings, repository: str) -> Incoming | str:
    """A failed commit status, which older services set instead of checks. It names no pull request; the branch tells
    its conversation."""
    if payload.text("state") not in ("failure", "error"):
        return "statuses that did not fail ask for nothing"
    named = re.compile(rf"{re.escape(settings.branch_prefix)}([1-9][0-9]{{0,8}})(?:-.*)?")
    found = [match for one in payload.children("branches") if (match := named.fullmatch(one.text("name")))]
    if not found:
        return "failing checks on a branch that is not ours"
    branch, number, sha = found[0].group(), int(found[0].group(1)), payload.required_text("sha")
    what = f"The status {markdown.line(payload.text('context'), 100)} on {markdown.line(branch)}"
    message = _failed(payload, settings, repository, number, branch, sha, what)
    return replace(message, event="status", external_id=f"status-{payload.required_number('id')}")


def _failed(
    payload: Payload, settings: Settings, repository: str, number: int, branch: str, sha: str, what: str
) -> Incoming:
    return Incoming(
        conversation=f"{repository}#{number}",
        author=Author("checks", "GitHub checks", is_bot=True),
        text=f"{what} at {markdown.line(sha, 12)} failed. Find out why and fix it.",
        addressed="check" in settings.triggers and settings.fix_tries > 0,
        kind="issue",
        trigger="check",
        facts={"repository": repository, "number": number, "head": branch, "sha": sha, "fork": False},
        stable_id=_stable_id(payload, number),
    )


def _rerun(
    check: Payload, payload: Payload, settings: Settings, repository: str, delivery: str
) -> Incoming | str:
    """Somebody pressed re-run on our check: repeat its request."""
    sender, pulls = payload.child("sender"), check.children("pull_requests")
    if settings.app_id is None or check.child("app").value.get("id") != settings.app_id:
        return "somebody else's checks"
    if not pulls or _is_bot(sender):
        return "a check of no pull request" if not pulls else "bots are not heard"
    number = pulls[0].required_number("number")
    return Incoming(
        conversation=f"{repository}#{number}",
        author=Author(str(sender.required_number("id")), sender.required_text("login")),
        text="The check was asked to run again: do once more what you were last asked for here, as things are now.",
        addressed="rerun" in settings.triggers,
        kind="pull",
        event="check_run",
        trigger="rerun",
        external_id=f"rerun-{delivery}",
        facts={
            "repository": repository, "number": number, "login": sender.text("login"),
            "sender": sender.value["id"], "sha": check.text("head_sha"), "fork": False,
        },
        stable_id=_stable_id(payload, number),
    )  # fmt: skip


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
"""Events that can become a message."""

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
"""Known events that never become a message."""

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
"""Events that arrive without a subscription and are ignored."""


def why_nothing(kind: str) -> str:
    """The note for an event that is not a message."""
    if kind in NOTED:
        return NOTED[kind]
    return "not listened to" if kind in IGNORED else "a kind of event that is not known yet"
