"""What a message holds beside its text: files to fetch, and everything else in words."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

from gofer.integration import Attachment
from gofer_telegram.node import Node

DOWNLOAD_LIMIT = 20 * 1024 * 1024
PASSED_ON = "passed-on:"
"""How the reference of a file begins that its sender did not make: forwarded, or of the message that is answered."""
VIDEO_NOTE = "video-note.mp4"
PHOTO_SIDE = 1600
"""Pixels of the longer side above which models gain nothing."""


def attachments(message: Node) -> tuple[Attachment, ...]:
    """The files of a message, still at Telegram."""
    found = [*_photo(message)]
    for kind, (name, media_type) in _FILES.items():
        if file := message.node(kind):
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


def _photo(message: Node) -> Iterator[Attachment]:
    """One of the sizes Telegram made: the largest a model has use for."""
    sizes = [size for size in message.nodes("photo") if size.text("file_id")]
    if not sizes:
        return
    fitting = [size for size in sizes if _side(size) <= PHOTO_SIDE]
    best = max(fitting, key=_side) if fitting else min(sizes, key=_side)
    yield from _file(best, "photo.jpg", "image/jpeg")


def _side(size: Node) -> int:
    return max(size.number("width") or 0, size.number("height") or 0)


def _file(file: Node, name: str, media_type: str) -> list[Attachment]:
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
    """A file name that names one file here: no path, no control or invisible characters, not hidden."""
    last = re.split(r"[/\\]", name)[-1]
    kept = "".join(character for character in last if character.isprintable() and character not in '<>:"|?*')
    kept = re.sub(r"\s+", " ", kept).strip(" .")
    stem, dot, suffix = kept.rpartition(".")
    short = f"{stem[:100]}{dot}{suffix[:20]}" if dot else kept[:100]
    return short or "file"


def in_words(message: Node) -> str:
    """What is neither text nor a file, as text; nothing when there is nothing."""
    return "\n".join(
        line for kind, say in _WORDS.items() if kind in message and (line := say(message.node(kind)))
    )


def _location(node: Node) -> str:
    return f"[location: {node.real('latitude'):.6f}, {node.real('longitude'):.6f}]"


def _venue(node: Node) -> str:
    return f"[place: {node.text('title')}, {node.text('address')}]"


def _contact(node: Node) -> str:
    name = f"{node.text('first_name')} {node.text('last_name')}".strip()
    return f"[contact: {name}, {node.text('phone_number')}]"


def _poll(node: Node) -> str:
    options = "; ".join(option.text("text") for option in node.nodes("options"))
    return f"[poll: {node.text('question')} Options: {options}]"


def _sticker(node: Node) -> str:
    return f"[sticker: {node.text('emoji') or node.text('set_name') or 'without a name'}]"


def _dice(node: Node) -> str:
    return f"[dice {node.text('emoji')}: {node.number('value')}]"


def _checklist(node: Node) -> str:
    tasks = "; ".join(task.text("text") for task in node.nodes("tasks"))
    return f"[checklist: {node.text('title')}: {tasks}]"


def _named(name: str) -> Callable[[Node], str]:
    return lambda node: f"[{name}: {node.text('title') or 'without a title'}]"


_WORDS: dict[str, Callable[[Node], str]] = {
    "venue": _venue,
    "location": _location,
    "contact": _contact,
    "poll": _poll,
    "sticker": _sticker,
    "dice": _dice,
    "checklist": _checklist,
    "game": _named("game"),
    "story": lambda node: "[a story]",
    "invoice": _named("invoice"),
    "paid_media": lambda node: "[paid media]",
}

CONTENT = ("text", "caption", "photo", *_FILES, *_WORDS)
"""Fields that make a message one that somebody wrote, rather than a note of Telegram's own."""
