"""Words of voice and video notes, by any server that speaks OpenAI's `/v1/audio/transcriptions`."""

from __future__ import annotations

import httpx2

from gofer.integration import Account, Attachment
from gofer_telegram.content import VIDEO_NOTE
from gofer_telegram.markdown import clean
from gofer_telegram.settings import Settings

WITHIN = 120.0
TRIES = 2
MAX_WORDS = 20_000
"""Characters kept of one note."""
HEARD = "(Transcribed from {name}:) {words}"
NOT_SET_UP = (
    "({name} cannot be listened to, for no transcription is set up: say so politely, and that an owner can set "
    "transcribe_url for this connection. The file is in the workspace.)"
)
FAILED = "({name} could not be transcribed: {why}. Say so politely. The file is in the workspace.)"
EMPTY = "({name} was transcribed, and no words were found in it.)"


def is_speech(attachment: Attachment) -> bool:
    """Whether somebody may be speaking in it."""
    return attachment.media_type.startswith("audio/") or attachment.name == VIDEO_NOTE


async def words_of(attachment: Attachment, content: bytes, account: Account) -> tuple[str, bool]:
    """What is said in a file, in a line for the model, and whether these are somebody's words. Never raises."""
    settings = Settings.model_validate(account.settings)
    name = attachment.name
    if not settings.transcribe_url:
        return NOT_SET_UP.format(name=name), False
    why = ""
    for _ in range(TRIES):
        try:
            words = clean(await _transcribed(attachment, content, settings, account)).strip()[:MAX_WORDS]
        except (httpx2.HTTPError, ValueError) as error:
            why = _why(error)
            continue
        return (HEARD.format(name=name, words=words), True) if words else (EMPTY.format(name=name), False)
    return FAILED.format(name=name, why=why), False


async def _transcribed(attachment: Attachment, content: bytes, settings: Settings, account: Account) -> str:
    assert account.http is not None
    key = account.secret("transcribe_key") if "transcribe_key" in account.secrets else ""
    response = await account.http.post(
        f"{settings.transcribe_url}/audio/transcriptions",
        data={"model": settings.transcribe_model, "response_format": "json"},
        files={"file": (attachment.name, content, attachment.media_type)},
        headers={"authorization": f"Bearer {key}"} if key else {},
        timeout=WITHIN,
    )
    response.raise_for_status()
    answer = response.json()
    text = answer.get("text") if isinstance(answer, dict) else None
    if not isinstance(text, str):
        raise ValueError("the answer has no text")
    return text


def _why(error: Exception) -> str:
    if isinstance(error, httpx2.HTTPStatusError):
        return f"the service answered {error.response.status_code}"
    return "the service could not be reached" if isinstance(error, httpx2.HTTPError) else "no usable answer"
