"""The generation loop: ids in, one new id at a time out. It knows no text."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from typing import TYPE_CHECKING

import torch

from groundup.errors import ConfigError
from groundup.generation.sampling import Sampler

if TYPE_CHECKING:
    from torch import Tensor

    from groundup.model import TransformerLM


def generate_ids(
    model: TransformerLM,
    prompt_ids: Sequence[int],
    num_new_ids: int,
    sampler: Sampler | None = None,
    generator: torch.Generator | None = None,
    stop_ids: Collection[int] = (),
) -> Iterator[int]:
    """Yield up to `num_new_ids` ids that continue the prompt, fewer when one of `stop_ids` comes.

    The stop id itself is not yielded. The model sees the last context_length ids. Without a
    generator (of the CPU) a fresh one of seed 0 draws; torch's global random state is untouched.
    """
    _check(model, prompt_ids, num_new_ids)
    if generator is None:
        generator = torch.Generator().manual_seed(0)
    return _generate(
        model, list(prompt_ids), num_new_ids, sampler or Sampler(), generator, frozenset(stop_ids)
    )


def _generate(
    model: TransformerLM,
    ids: list[int],
    num_new_ids: int,
    sampler: Sampler,
    generator: torch.Generator,
    stop_ids: frozenset[int],
) -> Iterator[int]:
    for _ in range(num_new_ids):
        logits = _next_logits(model, ids[-model.config.context_length :])
        chosen = int(sampler.choose(logits, generator))
        if chosen in stop_ids:
            return
        ids.append(chosen)
        yield chosen


def _next_logits(model: TransformerLM, ids: list[int]) -> Tensor:
    """Scores of the id after these. Modes are set and restored here, so that none of them holds
    while the caller has the turn."""
    was_training = model.training
    model.eval()
    try:
        with torch.no_grad():
            batch = torch.tensor([ids], dtype=torch.long, device=model.output_weight.device)
            logits: Tensor = model(batch)
            return logits[0, -1]
    finally:
        model.train(was_training)


def _check(model: TransformerLM, prompt_ids: Sequence[int], num_new_ids: int) -> None:
    if num_new_ids < 0:
        raise ConfigError(f"the number of new ids is {num_new_ids}; it must be 0 or more")
    if not prompt_ids:
        raise ConfigError("there is no id to go on from; give at least one")
    vocab_size = model.config.vocab_size
    for id in prompt_ids:
        if not 0 <= id < vocab_size:
            raise ConfigError(
                f"id {id} is outside the model's vocabulary of {vocab_size}; was the prompt "
                f"encoded with another tokenizer?"
            )
