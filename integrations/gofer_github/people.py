"""Who may ask for something: the permission of the real sender, looked up. Nothing else counts."""

from __future__ import annotations

import tomllib

from pydantic import BaseModel, ConfigDict, ValidationError

from gofer.errors import Permanent
from gofer.integration import Account, Admission, Incoming, Unread
from gofer_github.access import READ, Access
from gofer_github.client import Client, is_missing
from gofer_github.place import MARK, Place
from gofer_github.settings import Settings, Trigger
from gofer_github.workflows import chosen

MAY_WRITE = frozenset({"write", "maintain", "admin"})
ALLOWED = "an allowed bot"
CONFIG = ".gofer.toml"
FIXING = "trigger=check"


class RepositoryConfig(BaseModel):
    """What a repository may say about itself, in .gofer.toml on its default branch."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = True
    triggers: tuple[Trigger, ...] | None = None
    instructions: str = ""


async def admit(unread: Unread, account: Account, access: Access) -> Admission:
    """Look the sender's permission up. Gofer's owner is who is paired as such; repository roles give no more
    than membership, because they say nothing about who runs this Gofer."""
    message = unread.message
    place = Place.of(message.conversation, message.lasting)
    settings = Settings.model_validate(account.settings)
    client = await access.to(account, place.repository, READ)
    if message.trigger == "check":
        return await _admit_check(message, client, place, settings)
    login = str(message.facts.get("login", ""))
    if message.author.is_bot and login in settings.allowed_bots:
        permission = ALLOWED  # GitHub knows no permission of a bot: to it, none is a collaborator
    else:
        permission = await permission_of(client, place.repository, login, message.author.id)
    if permission not in (*MAY_WRITE, ALLOWED):
        return Admission("stranger", note=f"permission: {permission}")
    if not message.addressed:
        return Admission(unread.known_as or "member", note=f"permission: {permission}")
    config = await repository_config(client, place.repository)
    if closed := _closed(config, message):
        return Admission("stranger", note=closed)
    text = _instructed(message, settings, config.instructions)
    return Admission(unread.known_as or "member", text=text, note=f"permission: {permission}")


async def permission_of(client: Client, repository: str, login: str, number: str) -> str:
    """What somebody may do in a repository, in GitHub's word for it."""
    try:
        found = await client.get(f"/repos/{repository}/collaborators/{login}/permission")
    except Permanent as error:
        if is_missing(error):
            return "none"
        raise
    # A login can be given up and taken by somebody else; the number in the signed event cannot.
    if str(found.get("user", {}).get("id")) != number:
        return "none (the login belongs to somebody else now)"
    return str(
        found.get("role_name") if found.get("role_name") in MAY_WRITE else found.get("permission", "none")
    )


async def _admit_check(message: Incoming, client: Client, place: Place, settings: Settings) -> Admission:
    """A failing check wakes us only on our own pull request, and only so often."""
    pull = await client.get(f"/repos/{place.repository}/pulls/{place.number}")
    if not settings.wrote(pull["user"]["login"]) or is_fork(pull):
        return Admission("stranger", note="not our pull request")
    comments = await client.pages(f"/repos/{place.repository}/issues/{place.number}/comments")
    ours = [comment["body"] for comment in comments if settings.wrote(comment["user"]["login"])]
    tried = sum(1 for body in ours if MARK in body and FIXING in body)
    if tried >= settings.fix_tries:
        return Admission("stranger", note=f"tried {tried} times already")
    config = await repository_config(client, place.repository)
    if closed := _closed(config, message):
        return Admission("stranger", note=closed)
    text = _instructed(message, settings, config.instructions)
    return Admission("member", text=text, note="checks failed on our own pull request")


def _instructed(message: Incoming, settings: Settings, own: str) -> str:
    """The request with what this sort of request calls for, and what the repository says about itself."""
    workflow = chosen(message, settings)
    parts = [message.text, f"(How to go about it: {' '.join(workflow.instructions.split())})"]
    if own.strip():
        parts.append(f"(About this repository: {own.strip()[:4000]})")
    return "\n\n".join(parts)


def is_fork(pull: dict[str, dict[str, dict[str, str] | None]]) -> bool:
    head, base = pull["head"]["repo"], pull["base"]["repo"]
    return head is None or base is None or head["full_name"] != base["full_name"]


def _closed(config: RepositoryConfig, message: Incoming) -> str:
    """Why the repository itself does not want this trigger; empty when it does."""
    if not config.enabled:
        return f"{CONFIG} switches Gofer off here"
    if config.triggers is not None and message.trigger not in config.triggers:
        return f"{CONFIG} does not allow the trigger {message.trigger}"
    return ""


async def repository_config(client: Client, repository: str) -> RepositoryConfig:
    """The repository's own settings; one that makes no sense closes it."""
    try:
        # Without a ref GitHub answers from the default branch, which a pull request cannot change.
        text = await client.file(repository, CONFIG)
    except Permanent as error:
        if is_missing(error):
            return RepositoryConfig()
        if error.reason == "github.not_text":
            return RepositoryConfig(enabled=False)
        raise
    try:
        return RepositoryConfig.model_validate(tomllib.loads(text))
    except (tomllib.TOMLDecodeError, ValidationError):
        return RepositoryConfig(enabled=False)
