"""`POST /api/rating`: answers that visitors of the chat page found good or bad, as conversations
that `groundup tune` reads.

    <run>/{chats_up.jsonl, chats_down.jsonl}
"""

from __future__ import annotations

import json
import threading
from pathlib import Path
from typing import Any, Literal

from groundup import disk
from groundup.errors import DataError
from groundup.files import read_plain_file, write_text_atomic
from groundup.serving.api_errors import ApiError
from groundup.serving.bodies import Body
from groundup.tokenizer.chat_template import check_messages

_MOST_BYTES = 1 << 26
_lock = threading.Lock()


class RatingRequest(Body):
    """A conversation up to the answer that is rated; null takes a rating back."""

    messages: list[Any]
    rating: Literal["up", "down"] | None
    model: str | None = None


def save_rating(folder: Path, body: RatingRequest) -> None:
    """Write the conversation to the file of its rating, and take it out of the other."""
    try:
        messages = check_messages(body.messages, "the request")
    except DataError as error:
        raise ApiError(400, str(error), param="messages") from error
    line = json.dumps({"messages": messages}, ensure_ascii=False)
    with _lock:
        for rating in ("up", "down"):
            path = folder / f"chats_{rating}.jsonl"
            try:
                data = read_plain_file(path, most_bytes=_MOST_BYTES) if path.exists() else b""
                lines = data.decode(errors="replace").splitlines()
                kept = [one for one in lines if one != line] + [line] * (body.rating == rating)
                if not kept:
                    disk.remove(path)
                elif kept != lines:
                    write_text_atomic(path, "".join(f"{one}\n" for one in kept))
            except (OSError, DataError) as error:
                raise ApiError(503, f"the rating cannot be saved: {error}") from error
