"""Files of a chat: those that come with a message, with the rest of its content in words; and those that a tool sends
from the workspace, pictures as pictures, voice as voice, several as an album."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import PurePosixPath
from typing import Any

from pydantic import Field

from gofer.integration import Attachment, ConnectionContext, Payload
from gofer.tool import Arguments, Tier, Tool, ToolContext, ToolResult
from gofer_telegram.chat import place_of
from gofer_telegram.client import Client, Rejected

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
        await send_files(Client(account), conversation, files, given.caption, as_document=given.as_document)
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
