"""What is asked across repositories, or beside the REST API: search, the storage of logs, and two words of GraphQL."""

from __future__ import annotations

import re
from typing import Any

from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response

from gofer_standins.github import shapes
from gofer_standins.github.door import Refusal, repository_for, token_of
from gofer_standins.github.world import Comment, Issue, Repository, World

QUALIFIERS = {"repo", "is", "state", "in", "author", "label"}


class Across:
    """Answers it."""

    def __init__(self, world: World) -> None:
        self._world = world

    async def search(self, request: Request) -> Response:
        """Issues or pull requests of one repository whose title or body has every word."""
        token = token_of(self._world, request)
        given = request.query_params.get("q", "").split()
        named = dict(word.split(":", 1) for word in given if ":" in word)
        words = [word.lower() for word in given if ":" not in word]
        if set(named) - QUALIFIERS or named.get("is") not in ("issue", "pull-request"):
            raise Refusal(422, "Query must include 'is:issue' or 'is:pull-request', and nothing unknown")
        try:
            of = repository_for(self._world, token, named.get("repo", ""), "issues", "read")
        except Refusal:
            raise Refusal(422, "The listed users and repositories cannot be searched") from None
        found = [one for one in of.issues.values() if _fits(one, named, words)]
        base = str(request.base_url).rstrip("/")
        place = {"repository_url": f"{base}/repos/{of.full_name}"}
        items = [{**shapes.issue(one, of, base), **place} for one in found[:100]]
        return JSONResponse({"total_count": len(found), "incomplete_results": False, "items": items})

    async def stored(self, request: Request) -> Response:
        """A log where it is kept. Whoever brings credentials here has let them out."""
        if "authorization" in request.headers:
            raise Refusal(400, "InvalidAuthenticationInfo")
        of = self._world.repositories[f"{request.path_params['owner']}/{request.path_params['name']}"]
        return PlainTextResponse(of.check_runs[int(request.path_params["id"])].log)

    async def asset(self, request: Request) -> Response:
        """A picture that somebody uploaded: for who has its signature, and brings no credentials."""
        if "authorization" in request.headers:
            raise Refusal(400, "InvalidAuthenticationInfo")
        data = self._world.assets.get(request.path_params["id"])
        if data is None or request.query_params.get("jwt") != self._world.signature:
            raise Refusal(404, "Not Found")
        return Response(data, media_type="application/octet-stream")

    async def graphql(self, request: Request) -> Response:
        """The review threads of a pull request, and the end of one."""
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
        raise Refusal(404, "Could not resolve to a node")


def _fits(one: Issue, named: dict[str, str], words: list[str]) -> bool:
    text = f"{one.title} {one.body}".lower()
    right = bool(one.head) == (named["is"] == "pull-request") and named.get("state", one.state) == one.state
    return right and all(word in text for word in words)


def _data(value: dict[str, Any]) -> Response:
    return JSONResponse({"data": value})
