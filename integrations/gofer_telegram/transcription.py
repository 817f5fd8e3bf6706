"""Words of voice and video notes, by any server that speaks OpenAI's `/v1/audio/transcriptions`."""

from __future__ import annotations

from dataclasses import dataclass

import httpx2

from gofer.integration import Account, Attachment
from gofer_telegram.content import VIDEO_NOTE
from gofer_telegram.markdown import clean
from gofer_telegram.settings import Settings

WITHIN = 120.0
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
LEAST_BYTES_A_SECOND = 2000
"""Of speech as Telegram keeps it: what is paid for is taken to last this long where the server does not say."""


@dataclass(frozen=True, slots=True)
class Heard:
    """What became of listening to a file."""

    line: str
    """For the model."""
    is_somebodys: bool = False
    """The line holds somebody's words."""
    cost: float = 0
    """In dollars."""


def is_speech(attachment: Attachment) -> bool:
    """Whether somebody may be speaking in it."""
    return attachment.media_type.startswith("audio/") or attachment.name == VIDEO_NOTE


async def words_of(attachment: Attachment, content: bytes, account: Account) -> Heard:
    """What is said in a file. Never raises."""
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
    attachment: Attachment, content: bytes, settings: Settings, account: Account
) -> tuple[str, float]:
    """The words, and the seconds that are paid for."""
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
    usage = answer.get("usage")
    seconds = usage.get("seconds") if isinstance(usage, dict) else None
    if isinstance(seconds, int | float) and 0 <= seconds < MAX_SECONDS:
        return text, float(seconds)
    return text, len(content) / LEAST_BYTES_A_SECOND


def _why(error: Exception) -> str:
    if isinstance(error, httpx2.HTTPStatusError):
        return f"the service answered {error.response.status_code}"
    return "the service could not be reached" if isinstance(error, httpx2.HTTPError) else "no usable answer"
