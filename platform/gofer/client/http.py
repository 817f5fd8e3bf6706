"""The client: one method per thing that programs do, and `call` for the rest."""

from __future__ import annotations

import json
import time
import uuid
from collections.abc import Iterator, Mapping
from types import TracebackType
from typing import Any, TypeVar
from urllib.parse import quote

import httpx2
from pydantic import BaseModel

from gofer.client import models

A = TypeVar("A", bound=BaseModel)

TRIES = 3
PAUSE = 0.5
"""Seconds before the second try; doubled for each further one."""
SILENCE = 45.0
"""Seconds without a sign of life after which a stream is taken for broken."""


class GoferProblem(Exception):
    """The server said no; `status`, `code` and the text say why."""

    def __init__(self, status: int, code: str, detail: str) -> None:
        super().__init__(detail)
        self.status = status
        self.code = code


class Unreachable(Exception):
    """The server could not be reached, or went away before it answered."""


class Gofer:
    """A Gofer, at an address, for whoever the token belongs to."""

    def __init__(self, url: str, *, token: str, timeout: float = 60.0) -> None:
        self._client = httpx2.Client(
            base_url=f"{url.rstrip('/')}/api/v1",
            headers={"authorization": f"Bearer {token}"},
            timeout=httpx2.Timeout(timeout, connect=10),
        )

    def __enter__(self) -> Gofer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def close(self) -> None:
        """Let the connections go."""
        self._client.close()

    # Talking.

    def say(self, text: str, *, conversation: str = "", agent: str = "") -> models.Said:
        """Say something, in a conversation or in a new one; returns the job that answers."""
        if conversation:
            path = f"/conversations/{quote(conversation, safe='')}/messages"
            return self.call("POST", path, models.Said, body={"text": text})
        return self.call("POST", "/messages", models.Said, body={"text": text, "agent": agent})

    def ask(self, text: str, *, conversation: str = "", agent: str = "") -> str:
        """Say something and wait for the answer; raises GoferProblem when the job ends without one."""
        said = self.say(text, conversation=conversation, agent=agent)
        if said.job_id is not None:
            state = self.wait(said.job_id)
            if state != "done":
                raise GoferProblem(409, f"job.{state}", f"Job {said.job_id} ended as {state}.")
        for message in self.messages(said.conversation_id):
            if message.author.startswith("agent:"):
                return message.text or ""
        raise GoferProblem(404, "no_answer", "There is no answer.")

    def messages(self, conversation: str) -> Iterator[models.Message]:
        """What was said in a conversation, newest first."""
        path = f"/conversations/{quote(conversation, safe='')}/messages"
        for page in self._pages(path, models.Messages):
            yield from page.messages

    # Following.

    def follow(
        self, *, job: int | None = None, conversation: str = "", after: str = ""
    ) -> Iterator[models.Event]:
        """Events as they happen, also across broken connections; those of a job end with the job."""
        wanted: dict[str, Any] = {"job": job, "conversation": conversation or None}
        params = {name: value for name, value in wanted.items() if value is not None}
        tries = 0
        while True:
            try:
                for place, name, event in self._stream(params, after):
                    if name == "end":
                        return
                    after, tries = place, 0
                    yield models.Event.model_validate(event)
            except httpx2.TransportError as error:
                tries += 1
                if tries >= TRIES:
                    raise Unreachable(str(error)) from error
                time.sleep(PAUSE * 2**tries)

    def wait(self, job: int) -> str:
        """Wait until a job has ended; returns its state."""
        for _ in self.follow(job=job):
            pass
        return self.job(job).job.state

    def _stream(self, params: Mapping[str, Any], after: str) -> Iterator[tuple[str, str, Any]]:
        headers = {"last-event-id": after} if after else {}
        timeout = httpx2.Timeout(SILENCE, connect=10)
        with self._client.stream(
            "GET", "/events", params=params, headers=headers, timeout=timeout
        ) as response:
            if response.is_error:
                response.read()
                raise _problem(response)
            block: dict[str, str] = {}
            for line in response.iter_lines():
                name, _, value = line.partition(": ")
                if line:
                    block[name] = value
                elif block:
                    if "data" in block:
                        yield block.get("id", ""), block.get("event", ""), json.loads(block["data"])
                    block = {}

    # Jobs.

    def jobs(self, *, state: str = "", kind: str = "", conversation: str = "") -> Iterator[models.Job]:
        """Jobs, newest first."""
        asked = {"state": state, "kind": kind, "conversation": conversation}
        for page in self._pages(
            "/jobs", models.Jobs, **{name: value for name, value in asked.items() if value}
        ):
            yield from page.jobs

    def job(self, job: int, *, words: bool = False) -> models.JobStory:
        """A job with its attempts, events and replies."""
        return self.call("GET", f"/jobs/{job}", models.JobStory, params={"words": words})

    def cancel(self, *jobs: int) -> models.SteeredMany:
        """Ask jobs to stop."""
        return self.call("POST", "/jobs/cancel", models.SteeredMany, body={"ids": list(jobs)})

    def redrive(self, *jobs: int) -> models.SteeredMany:
        """Run dead or cancelled jobs again."""
        return self.call("POST", "/jobs/redrive", models.SteeredMany, body={"ids": list(jobs)})

    # The rest.

    def me(self) -> models.Me:
        """Who the token belongs to, and what it may do."""
        return self.call("GET", "/me", models.Me)

    def status(self) -> models.Status:
        """How the instance is doing."""
        return self.call("GET", "/status", models.Status)

    def costs(self, days: int = 30) -> models.Costs:
        """What was paid."""
        return self.call("GET", "/costs", models.Costs, params={"days": days})

    def put_secret(self, name: str, value: str, *, owner: str = "") -> models.SecretKept:
        """Keep a secret, of a connection or of the workspace. No call ever returns one."""
        body = {"name": name, "value": value, "owner": owner}
        return self.call("PUT", "/secrets", models.SecretKept, body=body)

    def call(
        self,
        method: str,
        path: str,
        answer: type[A],
        *,
        params: Mapping[str, Any] | None = None,
        body: Any = None,
        if_match: str = "",
    ) -> A:
        """Any operation of /api/v1/docs, with the model of its answer."""
        headers = {"if-match": if_match} if if_match else {}
        if method == "POST":
            headers["idempotency-key"] = str(uuid.uuid4())
        response = self._sent(method, path, params=params, json=body, headers=headers)
        if response.is_error:
            raise _problem(response)
        return answer.model_validate(response.json())

    def _sent(self, method: str, path: str, **request: Any) -> httpx2.Response:
        """Try again when the answer is lost or the server is busy; keys make that harmless."""
        for number in range(TRIES):
            try:
                response = self._client.request(method, path, **request)
            except httpx2.TransportError as error:
                # What was deleted the first time would not be found the second.
                if number == TRIES - 1 or method == "DELETE":
                    raise Unreachable(f"{type(error).__name__}: {error}") from error
            else:
                if response.status_code != 503 or number == TRIES - 1:
                    return response
            time.sleep(PAUSE * 2**number)
        raise AssertionError("unreachable")

    def _pages(self, path: str, answer: type[A], **params: Any) -> Iterator[A]:
        cursor = ""
        while True:
            page = self.call("GET", path, answer, params={**params, "cursor": cursor, "limit": 100})
            yield page
            cursor = getattr(page, "next", None) or ""
            if not cursor:
                return


def _problem(response: httpx2.Response) -> GoferProblem:
    try:
        told = models.Problem.model_validate(response.json())
    except ValueError:
        return GoferProblem(response.status_code, "", f"The server answered {response.status_code}.")
    return GoferProblem(told.status, told.code, told.detail)
