"""Admission: how far an author is trusted, and fetching the files that came along."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from gofer.integration import Account, Admission, Attachment, File, Incoming, TrustLevel, Unread
from gofer_telegram.client import Client, Rejected
from gofer_telegram.content import DOWNLOAD_LIMIT, PASSED_ON
from gofer_telegram.place import place_of
from gofer_telegram.settings import Settings
from gofer_telegram.transcription import NOT_ASKED, is_speech, words_of

TURNED_AWAY = (
    "I work only for people I know, and I do not know you. If my owner lets you in, I will tell you here."
)
TOO_BIG = "(The file {name} was not fetched: bots may fetch {limit} MB at most.)"
GONE = "(The file {name} could not be fetched: {why})"


def trust_of(unread: Unread, settings: Settings) -> TrustLevel:
    """By numeric id: paired or let in, listed, or in a group whose people all count as members."""
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
    """What came along with a message."""

    files: list[File] = field(default_factory=list)
    remarks: list[str] = field(default_factory=list)
    """To be read with the author's own words."""
    quotes: list[str] = field(default_factory=list)
    """Words of others, or words that the author only passed on."""
    cost: float = 0
    """Of listening, in dollars."""


async def admit(unread: Unread, account: Account) -> Admission:
    """Look who it is; fetch files, and listen to them, only for people we work for."""
    message = unread.message
    trust = trust_of(unread, Settings.model_validate(account.settings))
    if trust == "stranger":
        return Admission(trust, turn_away=TURNED_AWAY if message.private else "", note="nobody we know")
    found = await _fetch(message, account)
    text = "\n".join([message.text, *found.remarks]).strip() if found.remarks else None
    quoted = "\n".join(part for part in (message.quoted, *found.quotes) if part)
    changed = replace(message, quoted=quoted) if found.quotes else None
    return Admission(trust, text=text, files=tuple(found.files), message=changed, cost=found.cost)


async def _fetch(message: Incoming, account: Account) -> _Found:
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
    """Two photos of an album must not become one file."""
    taken = {file.name for file in files}
    if attachment.name not in taken:
        return attachment.name
    stem, dot, suffix = attachment.name.rpartition(".")
    numbers = (f"{stem or suffix}-{number}{dot and dot + suffix}" for number in range(2, len(files) + 3))
    return next(name for name in numbers if name not in taken)
