"""The content of a message beyond its text: files to fetch, and the rest described in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from gofer.integration import Attachment, Payload

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
