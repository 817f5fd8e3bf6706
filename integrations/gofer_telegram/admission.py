"""Admission: decide how far an author is trusted, fetch attachments, and transcribe speech.

The files of a chat are here, too: those that come with a message, and those that a tool sends from the workspace.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import PurePosixPath
from typing import Any

import httpx2
from pydantic import Field

from gofer.integration import (
    Admission,
    Attachment,
    ConnectionContext,
    File,
    Incoming,
    Payload,
    TrustLevel,
    Unread,
)
from gofer.tool import Arguments, Tier, Tool, ToolContext, ToolResult
from gofer_telegram.client import Client, Rejected, Settings, place_of
from gofer_telegram.markdown import clean

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
TRANSCRIBED = "(Transcribed from {name}:) {words}"
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
class Transcript:
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


async def words_of(attachment: Attachment, content: bytes, account: ConnectionContext) -> Transcript:
    """Transcribe a file. Never raises."""
    settings = Settings.model_validate(account.settings)
    name = attachment.name
    if not settings.transcribe_url:
        return Transcript(NOT_SET_UP.format(name=name))
    why = ""
    for _ in range(TRIES):
        try:
            text, seconds = await _transcribed(attachment, content, settings, account)
        except (httpx2.HTTPError, ValueError) as error:
            why = _why(error)
            continue
        cost = seconds / 60 * settings.transcribe_price
        if words := clean(text).strip()[:MAX_WORDS]:
            return Transcript(TRANSCRIBED.format(name=name, words=words), True, cost)
        return Transcript(EMPTY.format(name=name), cost=cost)
    return Transcript(FAILED.format(name=name, why=why))


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


DOWNLOAD_LIMIT = 20 * 1024 * 1024
PASSED_ON = "passed-on:"
"""Prefix of the reference of a file that the sender did not make: a forward, or from the message it answers."""
VIDEO_NOTE = "video-note.mp4"
PHOTO_SIDE = 1600
"""Pixels of the longer side; models gain nothing from more."""


def attachments(message: Payload) -> tuple[Attachment, ...]:
    """The files of a message, not fetched yet."""
    found = [*_photo(message)]
    for kind, (name, media_type) in _FILES.items():
        if file := message.child(kind):
            found += _file(file, name, media_type)
    return tuple({file.ref: file for file in reversed(found)}.values())[::-1]


# An animation also comes as a document, for old clients; of two with the same id the first counts.
_FILES = {
    "animation": ("animation.mp4", "video/mp4"),
    "document": ("file", "application/octet-stream"),
    "video": ("video.mp4", "video/mp4"),
    "video_note": (VIDEO_NOTE, "video/mp4"),
    "voice": ("voice.ogg", "audio/ogg"),
    "audio": ("audio.mp3", "audio/mpeg"),
}


def _photo(message: Payload) -> Iterator[Attachment]:
    """The largest size of a photo that a model can use."""
    sizes = [size for size in message.children("photo") if size.text("file_id")]
    if not sizes:
        return
    fitting = [size for size in sizes if _side(size) <= PHOTO_SIDE]
    best = max(fitting, key=_side) if fitting else min(sizes, key=_side)
    yield from _file(best, "photo.jpg", "image/jpeg")


def _side(size: Payload) -> int:
    return max(size.number("width") or 0, size.number("height") or 0)


def _file(file: Payload, name: str, media_type: str) -> list[Attachment]:
    ref = file.text("file_id")
    if not ref:
        return []
    return [
        Attachment(
            ref=ref,
            name=clean_name(file.text("file_name") or name),
            media_type=file.text("mime_type")[:100] or media_type,
            size=file.number("file_size") or 0,
        )
    ]


def clean_name(name: str) -> str:
    """A safe file name: no path, no control or invisible characters, not hidden."""
    last = re.split(r"[/\\]", name)[-1]
    kept = "".join(character for character in last if character.isprintable() and character not in '<>:"|?*')
    kept = re.sub(r"\s+", " ", kept).strip(" .")
    stem, dot, suffix = kept.rpartition(".")
    short = f"{stem[:100]}{dot}{suffix[:20]}" if dot else kept[:100]
    return short or "file"


def in_words(message: Payload) -> str:
    """Content that is neither text nor a file, described in words."""
    return "\n".join(
        line for kind, say in _WORDS.items() if kind in message and (line := say(message.child(kind)))
    )


def _name_of_contact(part: Payload) -> str:
    return f"{part.text('first_name')} {part.text('last_name')}".strip()


def _joined(parts: list[Payload]) -> str:
    return "; ".join(part.text("text") for part in parts)


_WORDS: dict[str, Callable[[Payload], str]] = {
    "venue": lambda part: f"[place: {part.text('title')}, {part.text('address')}]",
    "location": lambda part: f"[location: {part.real('latitude'):.6f}, {part.real('longitude'):.6f}]",
    "contact": lambda part: f"[contact: {_name_of_contact(part)}, {part.text('phone_number')}]",
    "poll": lambda part: f"[poll: {part.text('question')} Options: {_joined(part.children('options'))}]",
    "sticker": lambda part: f"[sticker: {part.text('emoji') or part.text('set_name') or 'without a name'}]",
    "dice": lambda part: f"[dice {part.text('emoji')}: {part.number('value')}]",
    "checklist": lambda part: f"[checklist: {part.text('title')}: {_joined(part.children('tasks'))}]",
    "game": lambda part: f"[game: {part.text('title') or 'without a title'}]",
    "story": lambda part: "[a story]",
    "invoice": lambda part: f"[invoice: {part.text('title') or 'without a title'}]",
    "paid_media": lambda part: "[paid media]",
}

CONTENT = ("text", "caption", "photo", *_FILES, *_WORDS)
"""Fields of a message that a person wrote; a service message has none of them."""


UPLOAD_LIMIT = 50 * 1024 * 1024
PHOTO_LIMIT = 10 * 1024 * 1024
MAX_ALBUM = 10
DESCRIPTION = (
    "Send files from the workspace to this chat, at most 50 MB each. Pictures are shown as pictures, sound and video "
    "are played, Opus in Ogg becomes a voice note, anything else a document; several go as an album. Use it when a "
    "person asked for a file, or when a result is better seen than told."
)
_METHODS = {
    "photo": "sendPhoto",
    "animation": "sendAnimation",
    "video": "sendVideo",
    "audio": "sendAudio",
    "voice": "sendVoice",
    "document": "sendDocument",
}
_TOGETHER = ({"photo", "video"}, {"audio"}, {"document"})
"""What may be in one album."""


class SendFile(Arguments):
    """What to send."""

    path: str = Field(default="", description="The file, by its path in the workspace.")
    paths: list[str] = Field(
        default_factory=list, max_length=MAX_ALBUM, description="Several files instead, sent together."
    )
    caption: str = Field(default="", max_length=1000, description="A line to go with it.")
    as_document: bool = Field(
        default=False, description="Send as a document: unchanged, where pictures would be made smaller."
    )


def kind_of(content: bytes) -> str:
    """How Telegram shows a file best, by its first bytes."""
    head = content[:64]
    if head.startswith((b"\x89PNG\r\n\x1a\n", b"\xff\xd8\xff")) or (head[:4], head[8:12]) == (
        b"RIFF",
        b"WEBP",
    ):
        return "photo" if len(content) <= PHOTO_LIMIT else "document"
    if head.startswith((b"GIF87a", b"GIF89a")):
        return "animation"
    if head.startswith(b"OggS"):
        return "voice" if b"OpusHead" in head else "document"
    if head[4:8] == b"ftyp":
        return "audio" if head[8:11] == b"M4A" else "video"
    is_mp3 = head.startswith(b"ID3") or (len(head) > 1 and head[0] == 0xFF and head[1] & 0xE6 == 0xE2)
    return "audio" if is_mp3 else "document"


def send_file_tool(account: ConnectionContext, conversation: str) -> Tool[SendFile]:
    """The tool for one conversation: it sends nowhere else."""

    async def run(given: SendFile, context: ToolContext) -> ToolResult:
        if context.shell is None:
            return ToolResult("There is no workspace to send a file from.", is_error=True)
        paths = [*([given.path] if given.path else []), *given.paths]
        if not paths or len(paths) > MAX_ALBUM:
            return ToolResult(f"Name one to {MAX_ALBUM} files in path or paths.", is_error=True)
        files: list[tuple[str, bytes]] = []
        for path in paths:
            content = await context.shell.read(path, limit=UPLOAD_LIMIT + 1)
            if len(content) > UPLOAD_LIMIT:
                return ToolResult(
                    f"{path} is larger than 50 MB, which Telegram does not take.", is_error=True
                )
            if not content:
                return ToolResult(f"{path} is empty; Telegram takes no empty files.", is_error=True)
            files.append((clean_name(PurePosixPath(path).name), content))
        if sum(len(content) for _, content in files) > UPLOAD_LIMIT:
            return ToolResult("Together these are larger than 50 MB; send them one by one.", is_error=True)
        caption = context.outgoing(given.caption)
        await send_files(Client(account), conversation, files, caption, as_document=given.as_document)
        sent = ", ".join(f"{name} ({len(content)} bytes)" for name, content in files)
        return ToolResult(f"Sent {sent}.", progress=True)

    return Tool("send_file", DESCRIPTION, SendFile, run, Tier.WRITE, timeout=120)


async def send_files(
    client: Client,
    conversation: str,
    files: list[tuple[str, bytes]],
    caption: str = "",
    *,
    as_document: bool = False,
) -> None:
    """Send files as what they are; what Telegram does not take as such goes as documents."""
    kinds = ["document" if as_document else kind_of(content) for _, content in files]
    try:
        await _send(client, conversation, files, kinds, caption)
    except Rejected as error:
        refused_as_such = error.says(
            "image_process_failed", "photo_", "wrong type", "voice_messages_forbidden"
        )
        if set(kinds) == {"document"} or not refused_as_such:
            raise
        await _send(client, conversation, files, ["document"] * len(files), caption)


async def _send(
    client: Client, conversation: str, files: list[tuple[str, bytes]], kinds: list[str], caption: str
) -> None:
    where = place_of(conversation).sending
    if len(files) == 1:
        uploads = {kinds[0]: files[0]}
        await client.call(_METHODS[kinds[0]], **where, caption=caption or None, files=uploads, within=120)
        return
    if not any(set(kinds) <= together for together in _TOGETHER):
        kinds = ["document"] * len(files)
    media: list[dict[str, Any]] = [
        {"type": kind, "media": f"attach://file{number}"} for number, kind in enumerate(kinds)
    ]
    if caption:
        media[0]["caption"] = caption
    attached = {f"file{number}": file for number, file in enumerate(files)}
    await client.call("sendMediaGroup", **where, media=media, files=attached, within=120)
