"""From a run's state to the messages of a request, valid whatever happened before.

Each call is followed by its result; one that began and has no end gets an honest error in its place.
"""

from __future__ import annotations

from collections.abc import Iterable

from gofer.agent.model import Block, ModelMessage
from gofer.agent.models.documents import document_stub
from gofer.agent.state import Call, Round, State

OUTCOME_UNKNOWN = (
    "Outcome unknown: the process that ran this call died before the result was recorded. It may have happened "
    "wholly, in part or not at all. Look at the state of things before you repeat it."
)
NOT_RUN = "Not run."
NO_OUTPUT = "(no output)"
IMAGE_STUB = "[an image was here; the model could not read it]"
CONTINUE = "(go on)"


def transcript(state: State) -> list[ModelMessage]:
    """The run's own messages, after what the context opens with."""
    messages: list[ModelMessage] = []
    for index in range(state.kept_from, len(state.rounds)):
        current = state.rounds[index]
        before = state.rounds[index - 1].calls if index > state.kept_from else []
        blocks = [_result(call, state, index - 1) for call in before] + _input(current, state, index)
        _append(messages, "user", blocks)
        _append(messages, "assistant", current.answer or [], current.by)
    if state.rounds and len(state.rounds) > state.kept_from:
        last = len(state.rounds) - 1
        _append(messages, "user", [_result(call, state, last) for call in state.rounds[last].calls])
    return messages


def merge(parts: Iterable[ModelMessage]) -> list[ModelMessage]:
    """Join messages of the same role, drop empty ones, begin and end with the user."""
    merged: list[ModelMessage] = []
    for part in parts:
        _append(merged, part["role"], part["content"], part.get("by", ""))
    if not merged or merged[0]["role"] == "assistant":
        merged.insert(0, {"role": "user", "content": [{"type": "text", "text": CONTINUE}]})
    if merged[-1]["role"] == "assistant":
        merged.append({"role": "user", "content": [{"type": "text", "text": CONTINUE}]})
    return merged


def _append(messages: list[ModelMessage], role: str, blocks: list[Block], by: str = "") -> None:
    if not blocks:
        return
    if messages and messages[-1]["role"] == role and messages[-1].get("by", "") == by:
        messages[-1]["content"].extend(blocks)
    elif role == "user":
        messages.append({"role": "user", "content": list(blocks)})
    elif messages and messages[-1]["role"] == role:
        messages.append({"role": "user", "content": [{"type": "text", "text": CONTINUE}]})
        messages.append({"role": "assistant", "content": list(blocks), "by": by})
    else:
        messages.append({"role": "assistant", "content": list(blocks), "by": by})


def _input(current: Round, state: State, index: int) -> list[Block]:
    return [_image_or_stub(block, state, index) for block in current.input]


def _image_or_stub(block: Block, state: State, index: int) -> Block:
    if block["type"] == "image" and index < state.images_dropped_before:
        return {"type": "text", "text": IMAGE_STUB}
    if block["type"] == "document" and index < state.images_dropped_before:
        return {"type": "text", "text": document_stub(str(block.get("title", "")))}
    return block


def _result(call: Call, state: State, index: int) -> Block:
    data = call.result
    if data is None:
        text = OUTCOME_UNKNOWN if call.started else NOT_RUN
        return _tool_result(call, [{"type": "text", "text": text}], True)
    if call.id in state.cleared:
        text = f"[cleared to save room: {len(data['content'])} characters of {call.name}; call it again if needed]"
        return _tool_result(call, [{"type": "text", "text": text}], data["is_error"])
    content: list[Block] = [{"type": "text", "text": data["content"] or NO_OUTPUT}]
    content += [_image_or_stub(image, state, index) for image in data["images"]]
    return _tool_result(call, content, data["is_error"])


def _tool_result(call: Call, content: list[Block], is_error: bool) -> Block:
    block: Block = {"type": "tool_result", "tool_use_id": call.id, "content": content}
    return {**block, "is_error": True} if is_error else block
