"""From a webhook's payload to a message, or to the reason why there is none. Pure."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, field, replace
from typing import Any

from gofer.errors import Malformed
from gofer.integration import COMMANDS, Account, Author, Incoming, Parsed, Request
from gofer_github import cleaning, errands
from gofer_github.events import MESSAGES, why_nothing
from gofer_github.node import Node
from gofer_github.place import MARK, Place, Repository, is_repository
from gofer_github.settings import Settings
from gofer_github.triggers import NOT_AT_ALL, spoken

_COMMANDS = frozenset(command.name for command in COMMANDS)
_LONGEST_QUOTE = 20_000
_LONGEST_TITLE = 1_000
_RELAYED = "(What a bot says may be what strangers told it.)"


@dataclass(frozen=True, slots=True)
class _Said:
    """What an event says, before it is known whether it concerns us."""

    text: str
    external_id: str
    title: str = ""
    """Of an issue or a pull request: it is part of what is said, but no Markdown."""
    trigger: str = ""
    """label, assignment …: what addressed us if no words did."""
    facts: dict[str, Any] = field(default_factory=dict)


def parse(request: Request, account: Account) -> Parsed:
    """Read a verified webhook."""
    delivery = request.text_header("x-github-delivery")
    kind = request.text_header("x-github-event")
    if not delivery or not kind:
        raise Malformed("A webhook of GitHub has the headers X-GitHub-Delivery and X-GitHub-Event.")
    if request.body.startswith(b"payload="):
        raise Malformed("The webhook's content type must be application/json; choose it in its settings.")
    payload = Node.of(request.json())
    action = payload.text("action")
    event = f"{kind}.{action}" if action else kind
    if kind not in MESSAGES:
        return Parsed(delivery, event[:200], note=why_nothing(kind), moved=_renamed(event, payload))
    settings = Settings.model_validate(account.settings)
    message = _errand(event, payload, account, settings) or _message(
        kind, action, payload, settings, delivery
    )
    if isinstance(message, str):
        return Parsed(delivery, event[:200], note=message)
    return Parsed(delivery, event[:200], message)


def _renamed(event: str, payload: Node) -> tuple[str, str] | None:
    """The old and the new name of a repository that is called otherwise now. One that another owner has is not
    followed: who may write to it is other people."""
    if event != "repository.renamed":
        return None
    new = payload.node("repository").text("full_name")
    name = payload.node("changes").node("repository").node("name").text("from")
    old = f"{new.partition('/')[0]}/{name}"
    return (old, new) if is_repository(old) and is_repository(new) and old != new else None


def _message(kind: str, action: str, payload: Node, settings: Settings, delivery: str) -> Incoming | str:
    repository = payload.node("repository").must_text("full_name")
    sender = payload.node("sender")
    login = sender.must_text("login")
    if not is_repository(repository):
        raise Malformed("The event's repository has an impossible name.")
    if not settings.hears(repository):
        return f"{repository} is not among the connection's repositories"
    if kind == "check_suite":
        return _failing(payload, settings, repository)
    if settings.app_id is not None and (settings.is_us(login) or settings.wrote(login)):
        return "our own doing"
    if _is_bot(sender) and login not in settings.allowed_bots:
        return "bots are not heard"
    said = _said(kind, action, payload, settings, delivery)
    if isinstance(said, str):
        return said
    if MARK in _titled(said.title, said.text):
        return "our own words"
    return _incoming(kind, payload, settings, repository, said)


def _errand(event: str, payload: Node, account: Account, settings: Settings) -> Incoming | None:
    """An issue that we opened because somebody asked us to, elsewhere: it is their request."""
    body = payload.node("issue").text("body") if event == "issues.opened" else ""
    if MARK not in body or not settings.wrote(payload.node("sender").text("login")):
        return None
    repository = payload.node("repository").must_text("full_name")
    asked = errands.asked_by(account, repository, body)
    if asked is None or not is_repository(repository) or not settings.hears(repository):
        return None
    issue = {**payload.node("issue").value, "body": errands.without_mark(body)}
    person = {"id": asked[0], "login": asked[1], "type": "User"}
    theirs = Node({**payload.value, "issue": issue, "sender": person})
    said = replace(_opened(Node(issue)), trigger="errand")
    return _incoming("issues", theirs, settings, repository, said)


def _is_bot(sender: Node) -> bool:
    return sender.text("type").lower() == "bot" or sender.text("login").endswith("[bot]")


def _said(kind: str, action: str, payload: Node, settings: Settings, delivery: str) -> _Said | str:
    """What the sender says with an event; or why nothing."""
    if action == "edited":
        return "text that is edited after it was said is not used"
    match kind, action:
        case (("issues" | "pull_request"), "opened"):
            return _opened(_subject(payload))
        case "issue_comment", "created":
            return _comment(payload.node("comment"), "comment")
        case "pull_request_review", "submitted":
            return _comment(payload.node("review"), "review")
        case "pull_request_review_comment", "created":
            return _review_comment(payload.node("comment"))
        case (("issues" | "pull_request"), ("labeled" | "assigned" | "review_requested")):
            return _gesture(action, payload, settings, delivery)
        case _:
            return "nothing is asked for"


def _opened(subject: Node) -> _Said:
    return _Said(subject.text("body"), str(subject.must_number("number")), subject.text("title"))


def _comment(comment: Node, what: str) -> _Said:
    return _Said(
        comment.text("body"), f"{what}-{comment.must_number('id')}", facts={"comment": comment.value["id"]}
    )


def _review_comment(comment: Node) -> _Said:
    id_ = comment.must_number("id")
    thread = comment.value.get("in_reply_to_id")
    where = {"path": cleaning.line(comment.text("path"), 500), "line": comment.value.get("line")}
    facts = {"review_comment": id_, "thread": thread if isinstance(thread, int) else id_, "where": where}
    return _Said(comment.text("body"), f"review_comment-{id_}", facts=facts)


def _gesture(action: str, payload: Node, settings: Settings, delivery: str) -> _Said | str:
    """A label, an assignment or a request for review, if it is meant for us."""
    who = payload.node("assignee" if action == "assigned" else "requested_reviewer").text("login")
    if action == "labeled":
        meant = payload.node("label").text("name").lower() == settings.label.lower()
    else:
        meant = bool(who) and settings.is_us(who)
    if not meant:
        return "a label or a person that is not ours"
    trigger = {"labeled": "label", "assigned": "assignment", "review_requested": "review_request"}[action]
    asks = "Please review this pull request." if trigger == "review_request" else "Please work on this."
    return _Said(asks, f"{trigger}-{delivery}", trigger=trigger)


def _subject(payload: Node) -> Node:
    return payload.node("pull_request") or payload.node("issue")


def _titled(title: str, body: str) -> str:
    return f"{title}\n\n{body}".strip("\n")


def _as_seen(title: str, body: str) -> str:
    return _titled(cleaning.line(title, _LONGEST_TITLE), cleaning.clean(body))


def _incoming(kind: str, payload: Node, settings: Settings, repository: str, said: _Said) -> Incoming:
    subject = _subject(payload)
    number = subject.must_number("number")
    sender = payload.node("sender")
    pull = kind.startswith("pull_request") or bool(subject.node("pull_request"))
    words = spoken(_titled(said.title, said.text), settings.handle) if not said.trigger else NOT_AT_ALL
    trigger = said.trigger or words.trigger
    command = words.command if words.command in _COMMANDS else ""
    return Incoming(
        conversation=f"{repository}#{number}",
        author=Author(str(sender.must_number("id")), sender.text("login"), _is_bot(sender)),
        text=_as_seen(said.title, said.text),
        addressed=bool(trigger) and not command and trigger in settings.triggers,
        kind="pull" if pull else "issue",
        title=cleaning.line(subject.text("title")),
        event=kind,
        trigger=trigger or "any",
        external_id=said.external_id,
        control=command if command in ("stop", "new") else "",  # type: ignore[arg-type]
        command=command,
        arguments=words.arguments if command else "",
        quoted=_quoted(subject, said) if trigger else "",
        quoted_here=_by_us_or(sender, subject.node("user"), settings),
        facts={**_facts(payload, subject, repository), "word": words.command, **said.facts},
        lasting=_lasting(payload, number),
    )


def _lasting(payload: Node, number: int) -> str:
    told = payload.node("repository")
    owner, id_ = told.node("owner").must_number("id"), told.must_number("id")
    return Place(Repository(told.text("full_name"), owner, id_), number).lasting


def _by_us_or(sender: Node, author: Node, settings: Settings) -> bool:
    """Whether what a request is about was written by whoever makes it, or by us."""
    theirs = author.value.get("id") == sender.value.get("id")
    return (theirs or settings.wrote(author.text("login"))) and not _is_bot(sender)


def _quoted(subject: Node, said: _Said) -> str:
    """The issue or pull request the request is about, as it was at that moment, in its author's words."""
    if said.external_id == str(subject.value.get("number")):  # the request is the issue itself
        return _RELAYED if _is_bot(subject.node("user")) else ""
    author = cleaning.line(subject.node("user").text("login"), 60)
    return f"{author} wrote:\n{_as_seen(subject.text('title'), subject.text('body'))}"[:_LONGEST_QUOTE]


def _facts(payload: Node, subject: Node, repository: str) -> dict[str, Any]:
    head, base = subject.node("head"), subject.node("base")
    return {
        "repository": repository,
        "number": subject.value["number"],
        "login": payload.node("sender").text("login"),
        "sender": payload.node("sender").value["id"],
        "default_branch": payload.node("repository").text("default_branch"),
        "head": head.text("ref"),
        "sha": head.text("sha"),
        "fork": bool(head) and head.node("repo").text("full_name") != base.node("repo").text("full_name"),
        "title": cleaning.line(subject.text("title")),
        "body": hashlib.sha256(subject.text("body").encode("utf-8", "replace")).hexdigest(),
        "asked_at": _moment(payload) or subject.text("updated_at"),
    }


def _moment(payload: Node) -> str:
    """When the request was made; what is changed later is not part of it."""
    return payload.node("comment").text("created_at") or payload.node("review").text("submitted_at")


def _failing(payload: Node, settings: Settings, repository: str) -> Incoming | str:
    """A failed round of checks on a branch of ours, once for all its checks."""
    suite = payload.node("check_suite")
    branch = suite.text("head_branch")
    pulls = suite.nodes("pull_requests")
    if payload.text("action") != "completed" or suite.text("conclusion") not in ("failure", "timed_out"):
        return "checks that did not fail ask for nothing"
    if not branch.startswith(settings.branch_prefix) or not pulls:
        return "failing checks on a branch that is not ours"
    number, sha = pulls[0].must_number("number"), suite.must_text("head_sha")
    return Incoming(
        conversation=f"{repository}#{number}",
        author=Author("checks", "GitHub checks", is_bot=True),
        text=f"The checks on {cleaning.line(branch)} at {sha[:12]} failed. Find out why and mend it.",
        addressed="check" in settings.triggers and settings.fix_tries > 0,
        kind="pull",
        event="check_suite",
        trigger="check",
        external_id=f"check_suite-{suite.must_number('id')}",
        facts={
            "repository": repository,
            "number": number,
            "head": branch,
            "sha": sha,
            "fork": False,
        },
        lasting=_lasting(payload, number),
    )
