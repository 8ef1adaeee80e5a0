"""`POST /api/rating`: answers that visitors of the chat page found good or bad, as conversations
that `groundup tune` reads, in the run's chats_up.jsonl and chats_down.jsonl.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

from groundup.errors import DataError
from groundup.files import append_json_line
from groundup.serving.api_errors import ApiError
from groundup.serving.bodies import Body
from groundup.tokenizer.chat_template import check_messages


class RatingRequest(Body):
    """A conversation up to the answer that is rated."""

    messages: list[Any]
    rating: Literal["up", "down"]
    model: str | None = None


def save_rating(folder: Path, body: RatingRequest) -> None:
    try:
        messages = check_messages(body.messages, "the request")
        append_json_line(folder / f"chats_{body.rating}.jsonl", {"messages": messages})
    except DataError as error:
        raise ApiError(400, str(error), param="messages") from error
    except OSError as error:
        raise ApiError(503, f"the rating cannot be saved: {error.strerror}") from error
