"""How the engine's rows get their texts into the decoder's cache: each once, several at a time.

A row's last id is left out: the next step decodes it with those of the other rows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from groundup.generation.decoder import Decoder
from groundup.generation.request import GenerationRequest
from groundup.generation.uniforms import Uniforms


@dataclass
class Row:
    """A request that is running."""

    handle: int
    request: GenerationRequest
    ids: list[int]
    """What the model sees; the last of them is not in the cache yet."""
    uniforms: Uniforms
    num_new: int = 0
    is_waiting: bool = True
    """The cache does not have the text yet."""
    holds_prompt: bool = True
    """The text still begins with the prompt."""


def read_prompts(decoder: Decoder, rows: Sequence[Row]) -> bool:
    """Prefill the rows that wait, equal prompts once; whether there were any."""
    waiting = [place for place, row in enumerate(rows) if row.is_waiting]
    if not waiting:
        return False
    sources = _first_places(rows)
    texts: list[tuple[int, list[int]]] = []
    copies: list[tuple[int, int]] = []
    for place in waiting:
        row = rows[place]
        source = sources[row.request.prompt_ids] if row.holds_prompt else place
        if len(row.ids) == 1:
            continue
        if source == place:
            texts.append((place, row.ids[:-1]))
        else:
            copies.append((source, place))
    if texts:
        decoder.prefill_many(texts)
    for source, place in copies:
        decoder.copy(source, place)
    for place in waiting:
        rows[place].is_waiting = False
    return True


def _first_places(rows: Sequence[Row]) -> dict[tuple[int, ...], int]:
    """For each prompt the row to copy it from: one that was read already, or else the first."""
    places: dict[tuple[int, ...], int] = {}
    for place, row in enumerate(rows):
        prompt = row.request.prompt_ids
        if row.holds_prompt and (prompt not in places or not row.is_waiting):
            places[prompt] = place
    return places
