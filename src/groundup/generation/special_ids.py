"""The ids that begin, end and pad texts: what a run folder knows of them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from groundup.text_files import END_OF_TEXT
from groundup.tokenizer import Tokenizer

IMPORTED_KEY = "imported"
"""In environment.json of an imported run: where it came from."""


@dataclass(frozen=True)
class SpecialIds:
    """Ids with a meaning of their own; a model may know several ends."""

    begin: int | None = None
    ends: tuple[int, ...] = ()
    padding: int | None = None

    @property
    def end(self) -> int | None:
        return self.ends[0] if self.ends else None


def find_special_ids(tokenizer: Tokenizer, environment: dict[str, Any]) -> SpecialIds:
    """Those an imported run came with; else the end of documents, which also begins and pads."""
    imported = environment.get(IMPORTED_KEY)
    stored = imported.get("special_ids") if isinstance(imported, dict) else None
    if isinstance(stored, dict):
        return read_special_ids(stored, tokenizer)
    end = _known(environment.get("end_id"), tokenizer)
    if end is None:
        end = tokenizer.special_tokens.get(END_OF_TEXT)
    return SpecialIds() if end is None else SpecialIds(begin=end, ends=(end,), padding=end)


def read_special_ids(value: dict[str, Any], tokenizer: Tokenizer) -> SpecialIds:
    """Special ids under Hugging Face's names; what is no id of the tokenizer is left out."""
    stored = value.get("eos_token_id")
    ends = [_known(id, tokenizer) for id in (stored if isinstance(stored, list) else [stored])]
    return SpecialIds(
        begin=_known(value.get("bos_token_id"), tokenizer),
        ends=tuple(id for id in ends if id is not None),
        padding=_known(value.get("pad_token_id"), tokenizer),
    )


def _known(id: Any, tokenizer: Tokenizer) -> int | None:
    return id if type(id) is int and id in tokenizer.vocab else None
