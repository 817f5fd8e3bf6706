"""Admission: how far an author is trusted, and fetching the files that came along."""

from __future__ import annotations

from gofer.integration import Account, Admission, Attachment, File, Incoming, TrustLevel, Unread
from gofer_telegram.client import Client, Rejected
from gofer_telegram.content import DOWNLOAD_LIMIT
from gofer_telegram.place import place_of
from gofer_telegram.settings import Settings

TURNED_AWAY = (
    "I work only for people I know, and I do not know you. If my owner lets you in, I will tell you here."
)
NOT_HEARD = "(I cannot listen to {name} yet: it is stored, not transcribed.)"
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
    # Whoever writes in the name of another chat is no person of this group.
    person = author.isdigit() or author == f"chat:{chat}"
    return "member" if group is not None and group.everyone and person else "stranger"


async def admit(unread: Unread, account: Account) -> Admission:
    """Look who it is; fetch files only for people we work for."""
    message = unread.message
    trust = trust_of(unread, Settings.model_validate(account.settings))
    if trust == "stranger":
        return Admission(trust, turn_away=TURNED_AWAY if message.private else "", note="nobody we know")
    files, remarks = await _fetch(message, account)
    text = "\n".join([message.text, *remarks]).strip() if remarks else None
    return Admission(trust, text=text, files=tuple(files))


async def _fetch(message: Incoming, account: Account) -> tuple[list[File], list[str]]:
    if not message.attachments:
        return [], []
    client = Client(account)
    files: list[File] = []
    remarks: list[str] = []
    for attachment in message.attachments:
        if attachment.size > DOWNLOAD_LIMIT:
            remarks.append(TOO_BIG.format(name=attachment.name, limit=DOWNLOAD_LIMIT >> 20))
            continue
        try:
            content = await client.download(attachment.ref, at_most=DOWNLOAD_LIMIT)
        except Rejected as error:
            remarks.append(GONE.format(name=attachment.name, why=error.description))
            continue
        files.append(File(_distinct(attachment, files), attachment.media_type, content))
        if attachment.media_type.startswith("audio/"):
            remarks.append(NOT_HEARD.format(name=attachment.name))
    return files, remarks


def _distinct(attachment: Attachment, files: list[File]) -> str:
    """Two photos of an album must not become one file."""
    taken = {file.name for file in files}
    if attachment.name not in taken:
        return attachment.name
    stem, dot, suffix = attachment.name.rpartition(".")
    numbers = (f"{stem or suffix}-{number}{dot and dot + suffix}" for number in range(2, len(files) + 3))
    return next(name for name in numbers if name not in taken)
