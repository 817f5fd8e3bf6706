"""Admission: decide how far an author is trusted, fetch attachments, and transcribe speech."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import httpx2

from gofer.integration import Admission, Attachment, ConnectionContext, File, Incoming, TrustLevel, Unread
from gofer_telegram.chat import place_of
from gofer_telegram.client import Client, Rejected
from gofer_telegram.files import DOWNLOAD_LIMIT, PASSED_ON, VIDEO_NOTE
from gofer_telegram.markdown import clean
from gofer_telegram.settings import Settings

TURNED_AWAY = (
    "I work only for people I know, and I do not know you. If my owner lets you in, I will tell you here."
)
TOO_BIG = "(The file {name} was not fetched: bots may fetch {limit} MB at most.)"
GONE = "(The file {name} could not be fetched: {why})"


def trust_of(unread: Unread, settings: Settings) -> TrustLevel:
    """Trust by numeric id: paired, listed as a member, or in a group whose people are all members."""
    author = unread.message.author.id
    if unread.known_as is not None:
        return unread.known_as
    if author.isdigit() and int(author) in settings.members:
        return "member"
    chat = place_of(unread.message.conversation).chat
    group = settings.groups.get(str(chat))
    if group is not None and author.isdigit() and int(author) in group.people:
        return "member"
    # Whoever writes in the name of another chat is no person of this group.
    person = author.isdigit() or author == f"chat:{chat}"
    return "member" if group is not None and group.everyone and person else "stranger"


@dataclass(slots=True)
class _Found:
    """What was found in a message's attachments."""

    files: list[File] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """Remarks to add to the author's text."""
    quotes: list[str] = field(default_factory=list)
    """Speech of others, or that the author only passed on."""
    cost: float = 0
    """Dollars spent on transcription."""


async def admit(unread: Unread, account: ConnectionContext) -> Admission:
    """Decide the author's trust. Fetch and transcribe files only for members and owners."""
    message = unread.message
    trust = trust_of(unread, Settings.model_validate(account.settings))
    if trust == "stranger":
        return Admission(trust, turn_away=TURNED_AWAY if message.private else "", note="nobody we know")
    found = await _fetch(message, account)
    text = "\n".join([message.text, *found.remarks]).strip() if found.remarks else None
    quoted = "\n".join(part for part in (message.quoted, *found.quotes) if part)
    changed = replace(message, quoted=quoted) if found.quotes else None
    return Admission(trust, text=text, files=tuple(found.files), message=changed, cost=found.cost)


async def _fetch(message: Incoming, account: ConnectionContext) -> _Found:
    found = _Found()
    if not message.attachments:
        return found
    client = Client(account)
    for attachment in message.attachments:
        if attachment.size > DOWNLOAD_LIMIT:
            found.remarks.append(TOO_BIG.format(name=attachment.name, limit=DOWNLOAD_LIMIT >> 20))
            continue
        try:
            content = await client.download(attachment.ref.removeprefix(PASSED_ON), at_most=DOWNLOAD_LIMIT)
        except Rejected as error:
            found.remarks.append(GONE.format(name=attachment.name, why=error.description))
            continue
        found.files.append(File(_distinct(attachment, found.files), attachment.media_type, content))
        if is_speech(attachment) and not message.addressed:
            found.remarks.append(NOT_ASKED.format(name=attachment.name))
        elif is_speech(attachment):
            heard = await words_of(attachment, content, account)
            foreign = heard.is_somebodys and attachment.ref.startswith(PASSED_ON)
            (found.quotes if foreign else found.remarks).append(heard.line)
            found.cost += heard.cost
    return found


def _distinct(attachment: Attachment, files: list[File]) -> str:
    """Give files of an album different names."""
    taken = {file.name for file in files}
    if attachment.name not in taken:
        return attachment.name
    stem, dot, suffix = attachment.name.rpartition(".")
    numbers = (f"{stem or suffix}-{number}{dot and dot + suffix}" for number in range(2, len(files) + 3))
    return next(name for name in numbers if name not in taken)


TRANSCRIBE_TIMEOUT = 120.0
TRIES = 2
MAX_SECONDS = 86_400
MAX_WORDS = 20_000
"""Characters kept of one note."""
HEARD = "(Transcribed from {name}:) {words}"
NOT_SET_UP = (
    "({name} cannot be listened to, for no transcription is set up: say so politely, and that an owner can set "
    "transcribe_url for this connection. The file is in the workspace.)"
)
FAILED = "({name} could not be transcribed: {why}. Say so politely. The file is in the workspace.)"
EMPTY = "({name} was transcribed, and no words were found in it.)"
NOT_ASKED = (
    "({name} was not listened to, for nobody addressed you with it; whoever wants that answers it and does.)"
)
MIN_BYTES_PER_SECOND = 2000
"""Bytes per second of Telegram's speech files, to estimate the duration when the server does not report it."""


@dataclass(frozen=True, slots=True)
class Heard:
    """The result of transcribing a file."""

    line: str
    """For the model."""
    is_somebodys: bool = False
    """Whether the line holds somebody's words."""
    cost: float = 0
    """In dollars."""


def is_speech(attachment: Attachment) -> bool:
    """Whether a file may contain speech."""
    return attachment.media_type.startswith("audio/") or attachment.name == VIDEO_NOTE


async def words_of(attachment: Attachment, content: bytes, account: ConnectionContext) -> Heard:
    """Transcribe a file. Never raises."""
    settings = Settings.model_validate(account.settings)
    name = attachment.name
    if not settings.transcribe_url:
        return Heard(NOT_SET_UP.format(name=name))
    why = ""
    for _ in range(TRIES):
        try:
            text, seconds = await _transcribed(attachment, content, settings, account)
        except (httpx2.HTTPError, ValueError) as error:
            why = _why(error)
            continue
        cost = seconds / 60 * settings.transcribe_price
        if words := clean(text).strip()[:MAX_WORDS]:
            return Heard(HEARD.format(name=name, words=words), True, cost)
        return Heard(EMPTY.format(name=name), cost=cost)
    return Heard(FAILED.format(name=name, why=why))


async def _transcribed(
    attachment: Attachment, content: bytes, settings: Settings, account: ConnectionContext
) -> tuple[str, float]:
    """The transcript, and the seconds to pay for."""
    assert account.http is not None
    key = account.secret("transcribe_key") if "transcribe_key" in account.secrets else ""
    response = await account.http.post(
        f"{settings.transcribe_url}/audio/transcriptions",
        data={"model": settings.transcribe_model, "response_format": "json"},
        files={"file": (attachment.name, content, attachment.media_type)},
        headers={"authorization": f"Bearer {key}"} if key else {},
        timeout=TRANSCRIBE_TIMEOUT,
    )
    response.raise_for_status()
    answer = response.json()
    text = answer.get("text") if isinstance(answer, dict) else None
    if not isinstance(text, str):
        raise ValueError("the answer has no text")
    usage = answer.get("usage")
    seconds = usage.get("seconds") if isinstance(usage, dict) else None
    if isinstance(seconds, int | float) and 0 <= seconds < MAX_SECONDS:
        return text, float(seconds)
    return text, len(content) / MIN_BYTES_PER_SECOND


def _why(error: Exception) -> str:
    if isinstance(error, httpx2.HTTPStatusError):
        return f"the service answered {error.response.status_code}"
    return "the service could not be reached" if isinstance(error, httpx2.HTTPError) else "no usable answer"
