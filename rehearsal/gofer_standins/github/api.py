"""GitHub's API, strict about its input: repositories (issues, pulls, checks, contents), search, logs and GraphQL."""

from __future__ import annotations

import base64
import html
import re
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, RedirectResponse, Response

from gofer_standins.github import git, shapes
from gofer_standins.github.auth import ORDER, ApiRefusal, repository_for, token_of
from gofer_standins.github.world import (
    CheckRun,
    Comment,
    GitHubWorld,
    Issue,
    Repository,
    Review,
    Token,
    stamp,
)

MAX_COMMENT = 65_536
MAX_LINES = 20_000
"""Lines of a diff."""
MAX_PATCH = 3_000
"""Changed lines of a file whose patch is shown."""
CONCLUSIONS = ("action_required", "cancelled", "failure", "neutral", "success", "skipped", "timed_out")
WORST_FIRST = ("failure", "timed_out", "action_required", "cancelled", "neutral", "skipped")
REACTIONS = {"+1", "-1", "laugh", "confused", "heart", "hooray", "rocket", "eyes"}


Tell = Callable[[str, dict[str, Any], Repository, str], None]
"""Event, payload, repository and the sender's login. Every subscribed App gets a webhook a moment later."""


@dataclass(eq=False)
class ApiRequest:
    """One authorised request."""

    world: GitHubWorld
    base: str
    request: Request
    token: Token
    of: Repository
    body: Any
    tell: Tell

    def number(self, name: str) -> int:
        return int(self.request.path_params[name])

    def text(self, name: str, *, least: int = 1, most: int = MAX_COMMENT) -> str:
        """A text of the body, or 422 as GitHub says it."""
        found = self.body.get(name) if isinstance(self.body, dict) else None
        if not isinstance(found, str) or not least <= len(found) <= most:
            raise ApiRefusal(422, f"Validation Failed: {name} must be a text of {least} to {most} characters")
        return found

    def issue(self) -> Issue:
        found = self.of.issues.get(self.number("number"))
        if found is None:
            raise ApiRefusal(404, "Not Found")
        return found

    def comment(self, among: dict[int, Comment]) -> Comment:
        found = among.get(self.number("id"))
        if found is None:
            raise ApiRefusal(404, "Not Found")
        return found

    def page(self, rows: list[Any]) -> list[Any]:
        query = self.request.query_params
        size, number = min(100, int(query.get("per_page", 30))), int(query.get("page", 1))
        return rows[(number - 1) * size : number * size]


Answer = Awaitable[Response]
Handler = Callable[[ApiRequest], Answer]


def _pull(asked: ApiRequest, one: Issue) -> dict[str, Any]:
    return shapes.pull(one, asked.of, asked.base, git.sha_of(asked.of, one.head))


def _pull_in_brief(asked: ApiRequest, one: Issue) -> dict[str, Any]:
    """A pull request as in lists, which do not count its comments."""
    return {name: value for name, value in _pull(asked, one).items() if name != "comments"}


async def get_repository(asked: ApiRequest) -> Response:
    return JSONResponse(shapes.repository(asked.of, asked.base))


async def get_branch(asked: ApiRequest) -> Response:
    name = asked.request.path_params["branch"]
    sha = git.sha_of(asked.of, name)
    if not sha:
        raise ApiRefusal(404, "Branch not found")
    shown = {"name": name, "commit": {"sha": sha}, "protected": name in asked.of.protected}
    return JSONResponse(shown)


async def permission(asked: ApiRequest) -> Response:
    login = asked.request.path_params["login"]
    user = asked.world.users.get(login)
    if user is None:
        raise ApiRefusal(404, f"{login} is not a user")
    role = asked.of.permissions.get(login, "none")
    legacy = {"maintain": "write", "triage": "read"}.get(role, role)
    return JSONResponse({"permission": legacy, "role_name": role, "user": shapes.user(user)})


_PICTURE = re.compile(r"!\[[^\]]*\]\(([^)\s]+)\)|<img [^>]*src=\"([^\"]+)\"")


def _with_html(asked: ApiRequest, shown: dict[str, Any]) -> dict[str, Any]:
    """The same with its body as HTML, if that is asked for: there, uploads have addresses that open."""
    if "full+json" not in asked.request.headers.get("accept", ""):
        return shown
    found = [one or other for one, other in _PICTURE.findall(shown["body"] or "")]
    signed = [f"{one}?jwt={asked.world.signature}" if "/user-attachments/" in one else one for one in found]
    return {
        **shown,
        "body_html": "<p>" + "".join(f'<img src="{html.escape(one)}">' for one in signed) + "</p>",
    }


async def get_issue(asked: ApiRequest) -> Response:
    return JSONResponse(_with_html(asked, shapes.issue(asked.issue(), asked.of, asked.base)))


async def create_issue(asked: ApiRequest) -> Response:
    made = Issue(
        asked.of.next_number(), asked.text("title", most=256), asked.body.get("body", ""), asked.token.user
    )
    asked.of.issues[made.number] = made
    shown = shapes.issue(made, asked.of, asked.base)
    asked.tell("issues", {"action": "opened", "issue": shown}, asked.of, made.user.login)
    return JSONResponse(shown, 201)


async def list_comments(asked: ApiRequest) -> Response:
    number, since = asked.issue().number, asked.request.query_params.get("since", "")
    rows = [
        one
        for one in asked.of.comments.values()
        if one.number == number and (one.updated_at or one.created_at) >= since
    ]
    return JSONResponse([shapes.comment(one, asked.of, asked.base) for one in asked.page(rows)])


async def create_comment(asked: ApiRequest) -> Response:
    issue = asked.issue()
    if issue.locked and asked.token.installation is not None:
        raise ApiRefusal(403, "Unable to create comment because issue is locked.")
    made = Comment(asked.world.next_id(), issue.number, asked.token.user, asked.text("body"))
    asked.of.comments[made.id] = made
    return JSONResponse(shapes.comment(made, asked.of, asked.base), 201)


async def get_comment(asked: ApiRequest) -> Response:
    shown = shapes.comment(asked.comment(asked.of.comments), asked.of, asked.base)
    return JSONResponse(_with_html(asked, shown))


async def edit_comment(asked: ApiRequest) -> Response:
    found = asked.comment(asked.of.comments)
    if found.user.login != asked.token.user.login and asked.token.installation is not None:
        raise ApiRefusal(403, "You do not have permission to edit this comment")
    found.body, found.updated_at = asked.text("body"), stamp()
    found.edits += 1
    return JSONResponse(shapes.comment(found, asked.of, asked.base))


async def delete_comment(asked: ApiRequest) -> Response:
    del asked.of.comments[asked.comment(asked.of.comments).id]
    return Response(status_code=204)


def _react(asked: ApiRequest, reactions: list[tuple[str, str]]) -> Response:
    content = asked.text("content")
    if content not in REACTIONS:
        raise ApiRefusal(422, "Validation Failed: content")
    one = (asked.token.user.login, content)
    known = one in reactions
    if not known:
        reactions.append(one)
    return JSONResponse({"id": 1, "content": content}, 200 if known else 201)


async def react_to_comment(asked: ApiRequest) -> Response:
    return _react(asked, asked.comment(asked.of.comments).reactions)


async def react_to_review_comment(asked: ApiRequest) -> Response:
    return _react(asked, asked.comment(asked.of.review_comments).reactions)


async def react_to_issue(asked: ApiRequest) -> Response:
    return _react(asked, asked.issue().reactions)


async def add_labels(asked: ApiRequest) -> Response:
    issue, labels = asked.issue(), asked.body.get("labels")
    if (
        not isinstance(labels, list)
        or not labels
        or not all(isinstance(one, str) and 0 < len(one) <= 50 for one in labels)
    ):
        raise ApiRefusal(422, "Validation Failed: labels")
    issue.labels += [one for one in labels if one not in issue.labels]
    return JSONResponse([{"name": name} for name in issue.labels])


async def list_pulls(asked: ApiRequest) -> Response:
    head = asked.request.query_params.get("head", "").partition(":")[2]
    state = asked.request.query_params.get("state", "open")
    rows = [
        one
        for one in asked.of.issues.values()
        if one.head and (not head or one.head == head) and state in ("all", one.state)
    ]
    rows.sort(key=lambda one: -one.number)
    return JSONResponse([_pull_in_brief(asked, one) for one in asked.page(rows)])


async def create_pull(asked: ApiRequest) -> Response:
    head, base = asked.text("head"), asked.text("base")
    if not git.sha_of(asked.of, head) or not git.sha_of(asked.of, base):
        raise ApiRefusal(422, "Validation Failed: head or base is not a branch")
    if any(one.head == head and one.base == base and one.state == "open" for one in asked.of.issues.values()):
        raise ApiRefusal(422, f"Validation Failed: A pull request already exists for {head}.")
    if git.sha_of(asked.of, head) == git.sha_of(asked.of, base):
        raise ApiRefusal(422, f"Validation Failed: No commits between {base} and {head}")
    if asked.body.get("draft") and not asked.of.drafts:
        raise ApiRefusal(422, "Draft pull requests are not supported in this repository.")
    made = Issue(
        asked.of.next_number(), asked.text("title", most=256), asked.text("body", least=0), asked.token.user,
        head=head, base=base, draft=bool(asked.body.get("draft")), head_repository=asked.of.full_name,
    )  # fmt: skip
    asked.of.issues[made.number] = made
    return JSONResponse(_pull(asked, made), 201)


def _is_pull(asked: ApiRequest) -> Issue:
    issue = asked.issue()
    if not issue.head:
        raise ApiRefusal(404, "Not Found")
    return issue


async def get_pull(asked: ApiRequest) -> Response:
    pull = _is_pull(asked)
    if "diff" in asked.request.headers.get("accept", ""):
        text = git.run(asked.of.path, "diff", _change(pull))
        if text.count("\n") > MAX_LINES:
            words = f"Sorry, the diff exceeded the maximum number of lines ({MAX_LINES})"
            return JSONResponse({"message": words, "errors": [{"code": "too_large"}]}, 406)
        return PlainTextResponse(text)
    return JSONResponse(_pull(asked, pull))


def _change(pull: Issue) -> str:
    return f"refs/heads/{pull.base}...refs/heads/{pull.head}"


async def list_files(asked: ApiRequest) -> Response:
    """What a pull request changes, file by file; a big file's patch is left out."""
    pull = _is_pull(asked)
    counted = git.run(asked.of.path, "diff", "--numstat", "-z", _change(pull)).split("\0")
    found = []
    for added, removed, name in (line.split("\t", 2) for line in counted if line):
        numbers = {"additions": int(added), "deletions": int(removed), "changes": int(added) + int(removed)}
        entry = {"filename": name, "status": "modified" if int(removed) else "added", **numbers}
        if numbers["changes"] < MAX_PATCH:
            whole = git.run(asked.of.path, "diff", _change(pull), "--", name)
            entry["patch"] = whole[whole.find("@@") :]
        found.append(entry)
    return JSONResponse(asked.page(found))


async def edit_pull(asked: ApiRequest) -> Response:
    pull = _is_pull(asked)
    pull.title = asked.text("title", most=256) if "title" in asked.body else pull.title
    pull.body = asked.text("body", least=0) if "body" in asked.body else pull.body
    return JSONResponse(_pull(asked, pull))


async def list_review_comments(asked: ApiRequest) -> Response:
    number = _is_pull(asked).number
    rows = [one for one in asked.of.review_comments.values() if one.number == number]
    return JSONResponse([shapes.comment(one, asked.of, asked.base) for one in asked.page(rows)])


async def reply_to_review(asked: ApiRequest) -> Response:
    pull, first = _is_pull(asked), asked.comment(asked.of.review_comments)
    made = Comment(asked.world.next_id(), pull.number, asked.token.user, asked.text("body"))
    made.path, made.thread = first.path, first.thread or first.id
    made.line, made.side, made.hunk = first.line, first.side, first.hunk
    asked.of.review_comments[made.id] = made
    return JSONResponse(shapes.comment(made, asked.of, asked.base), 201)


async def get_review_comment(asked: ApiRequest) -> Response:
    shown = shapes.comment(asked.comment(asked.of.review_comments), asked.of, asked.base)
    return JSONResponse(_with_html(asked, shown))


async def list_reviews(asked: ApiRequest) -> Response:
    number = _is_pull(asked).number
    rows = [shapes.review(one) for one in asked.of.reviews.values() if one.number == number]
    return JSONResponse(asked.page(rows))


async def list_comments_of_review(asked: ApiRequest) -> Response:
    pull, review = _is_pull(asked), asked.of.reviews.get(asked.number("id"))
    if review is None or review.number != pull.number:
        raise ApiRefusal(404, "Not Found")
    rows = [one for one in asked.of.review_comments.values() if one.review == review.id]
    return JSONResponse([shapes.comment(one, asked.of, asked.base) for one in asked.page(rows)])


STATES = {"APPROVE": "APPROVED", "REQUEST_CHANGES": "CHANGES_REQUESTED", "COMMENT": "COMMENTED"}


async def create_review(asked: ApiRequest) -> Response:
    """One review with its comments, or none of it: a comment on a line that is not in the diff refuses the whole."""
    pull, event = _is_pull(asked), asked.body.get("event")
    if event not in STATES:
        raise ApiRefusal(422, "Validation Failed: event")
    if event != "COMMENT" and pull.user.login == asked.token.user.login:
        raise ApiRefusal(
            422, f"Unprocessable Entity: Can not {event.lower().replace('_', ' ')} on your own pull request"
        )
    body = asked.text("body", least=0 if event == "APPROVE" else 1)
    sha = asked.body.get("commit_id") or git.sha_of(asked.of, pull.head)
    if sha != git.sha_of(asked.of, pull.head):
        git.run(asked.of.path, "merge-base", "--is-ancestor", sha, f"refs/heads/{pull.head}")
    made = Review(asked.world.next_id(), pull.number, asked.token.user, body, STATES[event], sha)
    comments = [_line_comment(asked, pull, made, one) for one in asked.body.get("comments", [])]
    asked.of.reviews[made.id] = made
    asked.of.review_comments |= {one.id: one for one in comments}
    return JSONResponse(shapes.review(made), 200)


def _line_comment(asked: ApiRequest, pull: Issue, review: Review, given: dict[str, Any]) -> Comment:
    unknown = {*given} - {"path", "line", "side", "start_line", "start_side", "body", "position"}
    path, line, side = given.get("path"), given.get("line"), given.get("side", "RIGHT")
    if unknown or not isinstance(path, str) or not isinstance(line, int) or side not in ("LEFT", "RIGHT"):
        raise ApiRefusal(
            422, f"Validation Failed: comments {sorted(unknown) or 'need path, line, side and body'}"
        )
    if not isinstance(given.get("body"), str) or not 0 < len(given["body"]) <= MAX_COMMENT:
        raise ApiRefusal(422, "Validation Failed: a comment's body")
    hunk = git.hunk_at(asked.of.path, _change(pull), path, line, side)
    if not hunk:
        raise ApiRefusal(422, "Unprocessable Entity: Line could not be resolved")
    start = given.get("start_line")
    if start is not None:
        above = git.hunk_at(asked.of.path, _change(pull), path, start, given.get("start_side", side))
        if start >= line or above.split("\n")[0] != hunk.split("\n")[0]:
            raise ApiRefusal(
                422, "Unprocessable Entity: Start line must precede the end line in the same hunk"
            )
    made = Comment(asked.world.next_id(), pull.number, asked.token.user, given["body"], path=path, line=line)
    made.side, made.start_line, made.hunk, made.review = side, start or 0, hunk, review.id
    made.thread = made.id
    return made


async def request_review(asked: ApiRequest) -> Response:
    pull, wanted = _is_pull(asked), asked.body.get("reviewers", [])
    for login in wanted:
        if ORDER[asked.of.permissions.get(login, "none")] == 0 or login == pull.user.login:
            raise ApiRefusal(422, "Reviews may only be requested from collaborators.")
    pull.reviewers += [login for login in wanted if login not in pull.reviewers]
    return JSONResponse(_pull_in_brief(asked, pull), 201)


async def contents(asked: ApiRequest) -> Response:
    path = asked.request.path_params["path"]
    ref = asked.request.query_params.get("ref") or f"refs/heads/{asked.of.default_branch}"
    if ref.startswith("-") or ":" in ref:
        raise ApiRefusal(404, "No commit found for the ref")
    text = git.run(asked.of.path, "show", f"{ref}:{path}", "--")
    if "raw" in asked.request.headers.get("accept", ""):
        return PlainTextResponse(text)
    packed = base64.b64encode(text.encode()).decode()
    return JSONResponse(
        {"type": "file", "path": path, "encoding": "base64", "content": packed, "size": len(text)}
    )


async def compare(asked: ApiRequest) -> Response:
    """How a commit lies to a branch."""
    base, _, head = asked.request.path_params["both"].partition("...")
    if base.startswith("-") or head.startswith("-") or not head:
        raise ApiRefusal(404, "Not Found")
    counted = git.run(
        asked.of.path, "rev-list", "--left-right", "--count", f"refs/heads/{base}...{head}", "--"
    )
    behind, ahead = map(int, counted.split())
    status = ("diverged" if behind else "ahead") if ahead else ("behind" if behind else "identical")
    told = git.run(
        asked.of.path, "log", "-z", "--reverse", "--format=%H%n%B", f"refs/heads/{base}..{head}", "--"
    )
    commits = [
        {"sha": sha, "commit": {"message": message.rstrip("\n")}}
        for sha, _, message in (one.partition("\n") for one in told.split("\0") if one)
    ]
    return JSONResponse(
        {"status": status, "ahead_by": ahead, "behind_by": behind, "commits": commits, "files": []}
    )


async def list_checks(asked: ApiRequest) -> Response:
    sha, name = asked.request.path_params["sha"], asked.request.query_params.get("check_name")
    rows = [one for one in asked.of.check_runs.values() if one.head_sha == sha and name in (None, one.name)]
    return JSONResponse(
        {"total_count": len(rows), "check_runs": list(map(shapes.check_run, asked.page(rows)))}
    )


async def get_commit(asked: ApiRequest) -> Response:
    """The commit that a name stands for, as its number alone; who has it already is told nothing."""
    name = asked.request.path_params["ref"]
    sha = git.sha_of(asked.of, asked.of.default_branch if name == "HEAD" else name)
    if not sha:
        raise ApiRefusal(409 if name == "HEAD" else 422, "Git Repository is empty.")
    if "github.sha" not in asked.request.headers.get("accept", ""):
        raise ApiRefusal(406, "The stand-in knows a commit's number alone.")
    etag = {"etag": f'"{sha}"'}
    if asked.request.headers.get("if-none-match") == etag["etag"]:
        return Response(status_code=304, headers=etag)
    return PlainTextResponse(sha, headers=etag, media_type="application/vnd.github.sha")


async def combined_status(asked: ApiRequest) -> Response:
    """The latest status of each context on a commit."""
    sha = asked.request.path_params["sha"]
    latest = {one["context"]: one for one in asked.of.statuses if one["sha"] == sha}
    states = {one["state"] for one in latest.values()}
    state = "failure" if states & {"failure", "error"} else "success" if states == {"success"} else "pending"
    shown = [{name: value for name, value in one.items() if name != "sha"} for one in latest.values()]
    return JSONResponse({"state": state, "sha": sha, "statuses": asked.page(shown)})


async def create_check(asked: ApiRequest) -> Response:
    if asked.token.installation is None:
        raise ApiRefusal(403, "You must authenticate via a GitHub App.")
    sha = asked.text("head_sha")
    git.run(asked.of.path, "cat-file", "-e", f"{sha}^{{commit}}")
    made = CheckRun(
        asked.world.next_id(), asked.text("name"), sha, asked.body.get("status", "queued"), asked.token.user.login,
        external_id=asked.body.get("external_id", ""),
    )  # fmt: skip
    _end_check(made, asked.body)
    asked.of.check_runs[made.id] = made
    _tell_suite(asked, made)
    return JSONResponse(shapes.check_run(made), 201)


async def edit_check(asked: ApiRequest) -> Response:
    found = asked.of.check_runs.get(asked.number("id"))
    if found is None or found.by != asked.token.user.login:
        raise ApiRefusal(404, "Not Found")
    _end_check(found, asked.body)
    _tell_suite(asked, found)
    return JSONResponse(shapes.check_run(found))


def _tell_suite(asked: ApiRequest, check: CheckRun) -> None:
    """GitHub keeps the checks that one App made on a commit as a suite, and tells everybody when all have ended:
    also the App itself."""
    suite = [
        one for one in asked.of.check_runs.values() if (one.by, one.head_sha) == (check.by, check.head_sha)
    ]
    if any(one.status != "completed" for one in suite) or asked.token.installation is None:
        return
    ended = {one.conclusion for one in suite}
    worst = next((one for one in WORST_FIRST if one in ended), "success")
    number = min(one.id for one in suite) * 10
    shown = shapes.check_suite(
        asked.of, number, check.head_sha, worst, asked.token.installation.app, git.sha_of
    )
    asked.tell("check_suite", {"action": "completed", "check_suite": shown}, asked.of, check.by)


def _end_check(check: CheckRun, body: dict[str, Any]) -> None:
    """What a request says about a check's state, if it makes sense."""
    status, conclusion = body.get("status", check.status), body.get("conclusion", check.conclusion)
    output = body.get("output", check.output)
    if status not in ("queued", "in_progress", "completed") or conclusion not in (None, *CONCLUSIONS):
        raise ApiRefusal(422, "Validation Failed: status or conclusion")
    if status == "completed" and not conclusion:
        raise ApiRefusal(422, "Validation Failed: a completed check has a conclusion")
    if output and not {"title", "summary"} <= set(output):
        raise ApiRefusal(422, "Validation Failed: output needs title and summary")
    check.status, check.conclusion, check.output = status, conclusion, output


async def job_logs(asked: ApiRequest) -> Response:
    """Redirect to a storage that takes no token."""
    found = asked.of.check_runs.get(asked.number("id"))
    if found is None or not found.log:
        raise ApiRefusal(404, "Not Found")
    return RedirectResponse(f"{asked.base}/storage/{asked.of.full_name}/{found.id}", 302)


R = "/repos/{owner}/{name}"
PULLS = "pull_requests"
ROUTES: tuple[tuple[str, str, str, str, Handler], ...] = (
    ("GET", R, "metadata", "read", get_repository),
    ("GET", f"{R}/branches/{{branch:path}}", "contents", "read", get_branch),
    ("GET", f"{R}/collaborators/{{login}}/permission", "metadata", "read", permission),
    ("POST", f"{R}/issues", "issues", "write", create_issue),
    ("GET", f"{R}/issues/{{number:int}}", "issues", "read", get_issue),
    ("GET", f"{R}/issues/{{number:int}}/comments", "issues", "read", list_comments),
    ("POST", f"{R}/issues/{{number:int}}/comments", "issues", "write", create_comment),
    ("POST", f"{R}/issues/{{number:int}}/labels", "issues", "write", add_labels),
    ("POST", f"{R}/issues/{{number:int}}/reactions", "issues", "write", react_to_issue),
    ("GET", f"{R}/issues/comments/{{id:int}}", "issues", "read", get_comment),
    ("PATCH", f"{R}/issues/comments/{{id:int}}", "issues", "write", edit_comment),
    ("DELETE", f"{R}/issues/comments/{{id:int}}", "issues", "write", delete_comment),
    ("POST", f"{R}/issues/comments/{{id:int}}/reactions", "issues", "write", react_to_comment),
    ("GET", f"{R}/pulls", PULLS, "read", list_pulls),
    ("POST", f"{R}/pulls", PULLS, "write", create_pull),
    ("GET", f"{R}/pulls/{{number:int}}", PULLS, "read", get_pull),
    ("PATCH", f"{R}/pulls/{{number:int}}", PULLS, "write", edit_pull),
    ("GET", f"{R}/pulls/{{number:int}}/files", PULLS, "read", list_files),
    ("GET", f"{R}/pulls/{{number:int}}/comments", PULLS, "read", list_review_comments),
    ("POST", f"{R}/pulls/{{number:int}}/comments/{{id:int}}/replies", PULLS, "write", reply_to_review),
    ("POST", f"{R}/pulls/{{number:int}}/requested_reviewers", PULLS, "write", request_review),
    ("POST", f"{R}/pulls/comments/{{id:int}}/reactions", PULLS, "write", react_to_review_comment),
    ("GET", f"{R}/pulls/comments/{{id:int}}", PULLS, "read", get_review_comment),
    ("GET", f"{R}/pulls/{{number:int}}/reviews", PULLS, "read", list_reviews),
    ("POST", f"{R}/pulls/{{number:int}}/reviews", PULLS, "write", create_review),
    ("GET", f"{R}/pulls/{{number:int}}/reviews/{{id:int}}/comments", PULLS, "read", list_comments_of_review),
    ("GET", f"{R}/contents/{{path:path}}", "contents", "read", contents),
    ("GET", f"{R}/compare/{{both:path}}", "contents", "read", compare),
    ("GET", f"{R}/commits/{{sha}}/check-runs", "checks", "read", list_checks),
    ("GET", f"{R}/commits/{{ref}}", "contents", "read", get_commit),
    ("GET", f"{R}/commits/{{sha}}/status", "statuses", "read", combined_status),
    ("GET", f"{R}/actions/jobs/{{id:int}}/logs", "actions", "read", job_logs),
    ("POST", f"{R}/check-runs", "checks", "write", create_check),
    ("PATCH", f"{R}/check-runs/{{id:int}}", "checks", "write", edit_check),
)
"""Method, path, permission, level and handler."""


QUALIFIERS = {"repo", "is", "state", "in", "author", "label"}


class OtherEndpoints:
    """Endpoints outside one repository's REST API: search, stored logs, uploads and GraphQL."""

    def __init__(self, world: GitHubWorld) -> None:
        self._world = world

    async def search(self, request: Request) -> Response:
        """Issues or pull requests of one repository whose title or body has every word."""
        token = token_of(self._world, request)
        given = request.query_params.get("q", "").split()
        named = dict(word.split(":", 1) for word in given if ":" in word)
        words = [word.lower() for word in given if ":" not in word]
        if set(named) - QUALIFIERS or named.get("is") not in ("issue", "pull-request"):
            raise ApiRefusal(422, "Query must include 'is:issue' or 'is:pull-request', and nothing unknown")
        try:
            of = repository_for(self._world, token, named.get("repo", ""), "issues", "read")
        except ApiRefusal:
            raise ApiRefusal(422, "The listed users and repositories cannot be searched") from None
        found = [one for one in of.issues.values() if _matches(one, named, words)]
        base = str(request.base_url).rstrip("/")
        place = {"repository_url": f"{base}/repos/{of.full_name}"}
        items = [{**shapes.issue(one, of, base), **place} for one in found[:100]]
        return JSONResponse({"total_count": len(found), "incomplete_results": False, "items": items})

    async def stored(self, request: Request) -> Response:
        """A log at its storage. A client that sends credentials here leaks them."""
        if "authorization" in request.headers:
            raise ApiRefusal(400, "InvalidAuthenticationInfo")
        of = self._world.repositories[f"{request.path_params['owner']}/{request.path_params['name']}"]
        return PlainTextResponse(of.check_runs[int(request.path_params["id"])].log)

    async def asset(self, request: Request) -> Response:
        """An uploaded picture, by its signature and without credentials."""
        if "authorization" in request.headers:
            raise ApiRefusal(400, "InvalidAuthenticationInfo")
        data = self._world.assets.get(request.path_params["id"])
        if data is None or request.query_params.get("jwt") != self._world.signature:
            raise ApiRefusal(404, "Not Found")
        return Response(data, media_type="application/octet-stream")

    async def graphql(self, request: Request) -> Response:
        """List the review threads of a pull request, or resolve one."""
        token = token_of(self._world, request)
        asked = await request.json()
        query, given = str(asked.get("query", "")), asked.get("variables", {})
        if "resolveReviewThread(" in query:
            of, first = self._thread(given["thread"])
            for permission in ("pull_requests", "contents"):
                repository_for(self._world, token, of.full_name, permission, "write")
            first.resolved = True
            return _data({"resolveReviewThread": {"thread": {"id": given["thread"]}}})
        if not re.search(r"pullRequest\(.*reviewThreads\(", query, re.S):
            return JSONResponse({"errors": [{"message": "Not covered by this stand-in."}]})
        full_name = f"{given['owner']}/{given['name']}"
        of = repository_for(self._world, token, full_name, "pull_requests", "read")
        heads = [
            one
            for one in of.review_comments.values()
            if one.number == given["number"] and one.thread == one.id
        ]
        end = next((n for n, one in enumerate(heads) if f"PRRT_{one.id}" == given.get("before")), len(heads))
        page = heads[max(0, end - 100) : end]
        nodes = [
            {
                "id": f"PRRT_{one.id}",
                "isResolved": one.resolved,
                "comments": {"nodes": [{"databaseId": one.id}]},
            }
            for one in page
        ]
        info = {"hasPreviousPage": end > 100, "startCursor": nodes[0]["id"] if nodes else None}
        return _data({"repository": {"pullRequest": {"reviewThreads": {"nodes": nodes, "pageInfo": info}}}})

    def _thread(self, id_: str) -> tuple[Repository, Comment]:
        for of in self._world.repositories.values():
            for one in of.review_comments.values():
                if id_ == f"PRRT_{one.id}":
                    return of, one
        raise ApiRefusal(404, "Could not resolve to a node")


def _matches(one: Issue, named: dict[str, str], words: list[str]) -> bool:
    text = f"{one.title} {one.body}".lower()
    right = bool(one.head) == (named["is"] == "pull-request") and named.get("state", one.state) == one.state
    return right and all(word in text for word in words)


def _data(value: dict[str, Any]) -> Response:
    return JSONResponse({"data": value})
