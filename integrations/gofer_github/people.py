"""Decides who may ask for something: by the sender's permission, which is looked up at GitHub. Nothing else counts."""

from __future__ import annotations

import hashlib
import tomllib
from collections.abc import Awaitable, Iterator
from dataclasses import dataclass, replace
from html.parser import HTMLParser
from typing import Annotated, Any, TypeVar
from urllib.parse import urlsplit

import httpx2
from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from gofer.errors import Permanent, Temporary
from gofer.integration import Admission, ConnectionContext, File, Incoming, TrustLevel, Unread
from gofer_github import markdown, marks, workflows
from gofer_github.access import READ, Access, moment
from gofer_github.client import Client, DefaultBranch, is_missing, login_of
from gofer_github.place import Place
from gofer_github.settings import PUBLIC, Settings, Trigger
from gofer_github.workflows import WorkflowRule, chosen

MAY_WRITE = frozenset({"write", "maintain", "admin"})
ALLOWED = "an allowed bot"
MEMBERS = MAY_WRITE | {ALLOWED}
CONFIG = ".gofer.toml"
GUIDES = ("AGENTS.md", "CLAUDE.md")
"""Where maintainers tell agents how to work in their repository."""
MAX_GUIDE = 12_000
MAX_INSTRUCTIONS = 4_000
FIXING = "trigger=check"
T = TypeVar("T")


class RepositoryConfig(BaseModel):
    """A repository's own settings, in .gofer.toml on its default branch."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    enabled: bool = True
    triggers: tuple[Trigger, ...] | None = None
    instructions: Annotated[str, AfterValidator(lambda text: text.strip()[:MAX_INSTRUCTIONS])] = ""
    rules: tuple[WorkflowRule, ...] = Field(default=(), max_length=50)


async def admit(unread: Unread, account: ConnectionContext, access: Access) -> Admission:
    """Look the sender's permission up.

    Gofer's owner is whoever is paired as owner. A role in a repository gives no more than membership, because it does
    not tell who runs this Gofer.
    """
    message = unread.message
    place = Place.of(message.conversation, message.stable_id)
    settings = Settings.model_validate(account.settings)
    client = await access.to(account, place.repository, READ)
    if message.trigger == "check":
        return await _admit_check(message, client, place, account)
    if message.trigger == workflows.RULE_TRIGGER and message.addressed:
        permission = await _patiently(_permission(message, client, place, settings))
        return await _admit_by_rule(message, unread.known_as, permission, client, account)
    permission = await _permission(message, client, place, settings)
    if permission not in MEMBERS:
        asked = replace(message, trigger=workflows.RULE_TRIGGER)
        if (
            message.addressed
            and message.facts.get("occasion")
            and workflows.RULE_TRIGGER in settings.triggers
        ):
            # A stranger's request does not count. That they opened something may count, as for anybody.
            by_rule = await _admit_by_rule(asked, unread.known_as, permission, client, account)
            if by_rule.trust == "member":
                return by_rule
        return Admission("stranger", note=f"permission: {permission}")
    if not message.addressed:
        return Admission(unread.known_as or "member", note=f"permission: {permission}")
    branch = await client.default_branch(place.repository)
    config = await repository_config(branch)
    if closed := _closed(config, message):
        return Admission("stranger", note=closed)
    text = await _instructed(message, branch, settings, config.instructions)
    found = await fetch(message, client, account, place)
    text = "\n\n".join(filter(None, (text, found.note)))
    note = f"permission: {permission}"
    return Admission(unread.known_as or "member", text=text, files=found.files, note=note)


async def _patiently(asking: Awaitable[T]) -> T:
    """Wait as long as GitHub asks. Nobody waits for this request, and nobody should read that it was given up."""
    try:
        return await asking
    except Temporary as error:
        raise Temporary(str(error), reason=error.reason, retry_after=error.retry_after or 60) from None


async def _admit_by_rule(
    message: Incoming,
    known_as: TrustLevel | None,
    permission: str,
    client: Client,
    account: ConnectionContext,
) -> Admission:
    """Admit an event that nobody asked for in words: a request only if the repository has a rule for it."""
    place = Place.of(message.conversation, message.stable_id)
    settings = Settings.model_validate(account.settings)
    branch = await _patiently(client.default_branch(place.repository))
    config = await _patiently(repository_config(branch))
    known = permission in MEMBERS
    told = _closed(config, message)
    rule = next((one for one in config.rules if one.fits(message) and (known or one.from_anyone)), None)
    if told or rule is None:
        trust: TrustLevel = (known_as or "member") if known else "stranger"
        kept = {name: value for name, value in message.facts.items() if name != "subject"}
        unasked = replace(message, addressed=False, facts=kept)
        return Admission(trust, message=unasked, note=told or f"no rule for this; permission: {permission}")
    about = {**message.facts, "workflow": rule.workflow, "login": ""}
    wanted = replace(
        message,
        author=workflows.RULE_AUTHOR,
        text=f"A rule in {CONFIG} asks for this ({rule.workflow}), on {message.facts.get('occasion')}.",
        quoted=str(message.facts.get("subject") or message.text),
        quote_is_ours=permission in MAY_WRITE and bool(message.facts.get("subject_is_senders")),
        facts={name: value for name, value in about.items() if name != "subject"},
    )
    try:
        if not known and chosen(wanted, settings).may_push:
            # Nobody with write permission has looked at it, and what is pushed may run where secrets are.
            raise Permanent(f"Strangers set nothing off that may push, such as {rule.workflow}.")
        own = "\n".join(filter(None, (config.instructions, rule.instructions)))
        text = await _instructed(wanted, branch, settings, own)
    except Permanent as error:
        return Admission("stranger", message=replace(message, addressed=False), note=str(error))
    found = await fetch(wanted, client, account, place)
    text = "\n\n".join(filter(None, (text, found.note)))
    return Admission("member", message=wanted, text=text, files=found.files, note=f"a rule: {rule.workflow}")


async def _permission(message: Incoming, client: Client, place: Place, settings: Settings) -> str:
    login = str(message.facts.get("login", ""))
    if message.author.is_bot and login in settings.allowed_bots:
        return ALLOWED  # GitHub knows no permission of a bot: to it, none is a collaborator
    return await permission_of(client, place.repository, login, message.author.id)


async def permission_of(client: Client, repository: str, login: str, number: str) -> str:
    """A person's permission in a repository, in GitHub's word for it."""
    try:
        found = await client.get(f"/repos/{repository}/collaborators/{login}/permission")
    except Permanent as error:
        if is_missing(error):
            return "none"
        raise
    # A login can be given up and taken by somebody else; the number in the signed event cannot.
    if str((found.get("user") or {}).get("id")) != number:
        return "none (the login belongs to somebody else now)"
    return str(
        found.get("role_name") if found.get("role_name") in MAY_WRITE else found.get("permission", "none")
    )


async def _admit_check(
    message: Incoming, client: Client, place: Place, account: ConnectionContext
) -> Admission:
    """Admit a failing check: only on our own pull request, and only so often."""
    settings = Settings.model_validate(account.settings)
    pull = await _failing_pull(message, client, place)
    if pull is None or not settings.wrote(login_of(pull)) or is_fork(pull):
        return Admission("stranger", note="not our pull request")
    comments = client.comments(place.repository, place.number)
    ours = [comment["body"] or "" async for comment in comments if settings.wrote(login_of(comment))]
    tried = sum(1 for body in ours if FIXING in marks.words(account, place, body))
    if tried >= settings.fix_tries:
        return Admission("stranger", note=f"tried {tried} times already")
    branch = await client.default_branch(place.repository)
    config = await repository_config(branch)
    if closed := _closed(config, message):
        return Admission("stranger", note=closed)
    text = await _instructed(message, branch, settings, config.instructions)
    return Admission("member", text=text, note="checks failed on our own pull request")


async def _failing_pull(message: Incoming, client: Client, place: Place) -> dict[str, Any] | None:
    """The pull request that a failing check is about; a status names its branch alone."""
    if message.kind == "pull":
        found: dict[str, Any] = await client.get(f"/repos/{place.repository}/pulls/{place.number}")
        return found
    head = f"{place.repository.partition('/')[0]}:{message.facts['head']}"
    pulls = await client.get(f"/repos/{place.repository}/pulls", head=head, state="open")
    return pulls[0] if pulls and pulls[0]["head"]["sha"] == message.facts["sha"] else None


async def _instructed(message: Incoming, branch: DefaultBranch, settings: Settings, own: str) -> str:
    """The request with the instructions for its kind, and with the repository's own."""
    workflow = chosen(message, settings)
    parts = [message.text, f"(How to go about it: {' '.join(workflow.instructions.split())})"]
    if own.strip():
        parts.append(f"(About this repository: {own.strip()})")
    if guide := await _guide(branch):
        parts.append(guide)
    return "\n\n".join(parts)


async def _guide(branch: DefaultBranch) -> str:
    """The maintainers' instructions for agents, from the first such file on the default branch, quoted as theirs."""
    for name in GUIDES:
        try:
            text = markdown.plain(await branch.file(name)).strip()
        except Permanent as error:
            if is_missing(error) or error.reason == "github.not_text":
                continue
            raise
        if not text:
            continue
        cut = (
            ""
            if len(text) <= MAX_GUIDE
            else f"\n(The rest is in {name}: {len(text) - MAX_GUIDE} characters.)"
        )
        quoted = "\n".join(f"> {row}".rstrip() for row in text[:MAX_GUIDE].split("\n"))
        return f"(The maintainers say in {name}, on the default branch, how to work here:)\n{quoted}{cut}"
    return ""


def is_fork(pull: dict[str, Any]) -> bool:
    head, base = pull["head"]["repo"], pull["base"]["repo"]
    return head is None or base is None or head["full_name"] != base["full_name"]


def _closed(config: RepositoryConfig, message: Incoming) -> str:
    """Why the repository's settings refuse this trigger; empty when they allow it."""
    if not config.enabled:
        return f"{CONFIG} switches Gofer off here"
    if config.triggers is not None and message.trigger not in config.triggers:
        return f"{CONFIG} does not allow the trigger {message.trigger}"
    return ""


async def repository_config(branch: DefaultBranch) -> RepositoryConfig:
    """The repository's own settings. Settings that make no sense close the repository."""
    try:
        # A pull request cannot change it.
        text = await branch.file(CONFIG)
    except Permanent as error:
        if is_missing(error):
            return RepositoryConfig()
        if error.reason == "github.not_text":
            return RepositoryConfig(enabled=False)
        raise
    try:
        return RepositoryConfig.model_validate(tomllib.loads(text))
    except (ValueError, RecursionError):  # no TOML, no settings of ours, or made to break a parser
        return RepositoryConfig(enabled=False)


MAX_PICTURES = 5
MAX_BYTES = 5 * 1024 * 1024
"""Bytes of one picture that models take."""
HTML = "application/vnd.github.full+json"
_UPLOADS = "/user-attachments/assets/"
_PUBLIC_HOSTS = frozenset({"private-user-images.githubusercontent.com", "user-images.githubusercontent.com"})
_TYPES = {b"\x89PNG\r\n\x1a\n": "image/png", b"\xff\xd8\xff": "image/jpeg", b"GIF8": "image/gif"}


@dataclass(frozen=True, slots=True)
class Pictures:
    """The pictures of a request, and a sentence for the model that says whose they are."""

    files: tuple[File, ...] = ()
    note: str = ""


class _Images(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "img":
            self.found += [value for name, value in attrs if name == "src" and value]


async def fetch(message: Incoming, client: Client, account: ConnectionContext, place: Place) -> Pictures:
    """The pictures of a request and of the issue or pull request that it is about."""
    if account.http is None:
        return Pictures()
    settings = Settings.model_validate(account.settings)
    files: list[File] = []
    told: list[str] = []
    missed = 0
    for whose, path in _sources(message, place):
        for address in await _addresses(client, path, message, settings):
            if len(files) == MAX_PICTURES:
                missed += 1
                continue
            data = await _download(account.http, address)
            kind = _media_type(data)
            if not kind:
                missed += 1
                continue
            name = f"picture-{len(files) + 1}.{kind.partition('/')[2]}"
            files.append(File(name, kind, data))
            told.append(f"{name} is of {whose}")
    told += [f"{missed} more could not be had"] if missed else []
    return Pictures(tuple(files), f"(Pictures: {'; '.join(told)}.)" if told else "")


def _sources(message: Incoming, place: Place) -> Iterator[tuple[str, str]]:
    """The requests that find the pictures of each text that shows some."""
    base, facts = f"/repos/{place.repository}", message.facts
    if _shows_one(message.text):
        if facts.get("review_comment"):
            yield "the request", f"{base}/pulls/comments/{facts['review_comment']}"
        elif message.external_id.startswith("comment-"):
            yield "the request", f"{base}/issues/comments/{facts['comment']}"
        elif message.external_id == str(place.number):
            yield "the request", f"{base}/issues/{place.number}"
    if _shows_one(message.quoted):
        yield "what the request is about", f"{base}/issues/{place.number}"


def _shows_one(text: str) -> bool:
    return "[image: " in text or "<img src" in text


async def _addresses(client: Client, path: str, message: Incoming, settings: Settings) -> list[str]:
    """The addresses of a text's pictures, if the text is still the one of the request."""
    try:
        found = await client.get(path, accept=HTML)
    except Permanent as error:
        if is_missing(error):
            return []
        raise
    if _changed(found, message):
        return []
    images = _Images()
    images.feed(str(found.get("body_html") or ""))
    return [address for address in dict.fromkeys(images.found) if _is_upload(address, settings)]


def _changed(found: dict[str, Any], message: Incoming) -> bool:
    if "number" in found:
        digest = hashlib.sha256(str(found.get("body") or "").encode("utf-8", "replace")).hexdigest()
        return bool(message.facts.get("body", digest) != digest)
    created, updated = (moment(str(found.get(name) or "")) for name in ("created_at", "updated_at"))
    return updated > created


def _is_upload(address: str, settings: Settings) -> bool:
    """Whether an address is one of GitHub's own uploads. Nothing is fetched from elsewhere."""
    parts, web = urlsplit(address), urlsplit(settings.web_url)
    if parts.scheme != web.scheme:
        return False
    if parts.netloc.lower() == web.netloc.lower():
        return parts.path.startswith(_UPLOADS)
    if settings.web_url == PUBLIC:
        return parts.netloc.lower() in _PUBLIC_HOSTS
    return parts.netloc.lower() == f"media.{web.netloc.lower()}"


async def _download(http: httpx2.AsyncClient, address: str) -> bytes:
    """A picture's bytes; none when it is missing or too big."""
    held = bytearray()
    try:
        async with http.stream("GET", address, follow_redirects=False) as response:
            if response.status_code != 200:
                return b""
            async for some in response.aiter_bytes():
                held += some
                if len(held) > MAX_BYTES:
                    return b""
    except httpx2.HTTPError:
        return b""
    return bytes(held)


def _media_type(data: bytes) -> str:
    """The media type by the first bytes; empty for what no model takes."""
    if data[:4] == b"RIFF" and data[8:12] == b"WEBP":
        return "image/webp"
    return next((kind for magic, kind in _TYPES.items() if data.startswith(magic)), "")
