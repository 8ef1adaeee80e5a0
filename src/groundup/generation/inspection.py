"""What a model does with a prompt, step by step, to look at: its tokens and their neighbours, the
attention of every head, what each layer would predict, and how the next id is sampled."""

from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from groundup.generation.language_model import LanguageModel
from groundup.generation.request import Sampler
from groundup.generation.sampling import apply_rules, not_finite, sample, uniforms
from groundup.model import TransformerLM

MAX_TOKENS = 64
"""Of a prompt to look at: attention grows with the square of it."""

NUM_NEIGHBOURS = 6
NUM_PREDICTED = 5
NUM_CANDIDATES = 12


@dataclass(frozen=True)
class Likely:
    """The ids of the largest values of each row, best first, and those values."""

    ids: Int[Tensor, "... k"]
    values: Float[Tensor, "... k"]


@dataclass(frozen=True)
class SamplingStep:
    """From the model's probabilities to one id.

    candidates: the likeliest ids before any rule, and the sampled one if it is not among them.
    stages: their probabilities, for the model ("model") and after each rule that is in use.
    number: the random number in [0, 1) that chose; None where the likeliest is taken.
    """

    candidates: tuple[int, ...]
    stages: dict[str, tuple[float, ...]]
    number: float | None
    sampled: int


@dataclass(frozen=True)
class Inspection:
    """See `inspect_prompt`."""

    ids: tuple[int, ...]
    neighbours: Likely
    attention: Float[Tensor, "layers heads seq seq"]
    predicted: Likely
    sampling: SamplingStep


@torch.no_grad()
def inspect_prompt(
    language_model: LanguageModel, prompt: str, sampler: Sampler, seed: int = 0
) -> Inspection:
    """The first MAX_TOKENS tokens of a prompt on their way through the model.

    neighbours: by the cosine of the embeddings, for each token.
    predicted: (layers + 1, seq, k), the probabilities of the next token if the output layer read
        what the blocks have added up so far: none of them first, all of them last ("logit lens").
    sampling: of the first id after those tokens, the one that `generate` samples with `seed`.
    """
    model = language_model.model
    ids = language_model.encode_prompt(prompt)[:MAX_TOKENS][: model.config.context_length]
    row = torch.tensor(ids, device=model.device)
    vocab_size = language_model.tokenizer.vocab_size
    lens, logits = _look_through_layers(model, row, vocab_size)
    return Inspection(
        tuple(ids),
        _find_neighbours(model, row, vocab_size),
        model.attention_weights(row[None])[:, 0].float().cpu(),
        lens,
        _follow_sampling(logits, row, sampler, seed),
    )


def _find_neighbours(model: TransformerLM, ids: Tensor, vocab_size: int) -> Likely:
    table = model.token_embedding.weight[:vocab_size].float()
    table = table / table.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    cosines = table[ids] @ table.T
    cosines[torch.arange(len(ids)), ids] = -torch.inf  # Everything is next to itself.
    return _likeliest(cosines, min(NUM_NEIGHBOURS, vocab_size - 1))


def _look_through_layers(
    model: TransformerLM, ids: Tensor, vocab_size: int
) -> tuple[Likely, Tensor]:
    """What each layer predicts, and the logits of the last one after the last id."""
    last, seen = model.observe(ids[None], model.blocks, lambda _, inputs: inputs[0])
    parts = []
    for hidden in (*map(model.final_norm, seen), last):
        logits = model.logits(hidden[0])[..., :vocab_size].float()
        parts.append(_likeliest(logits.softmax(dim=-1), min(NUM_PREDICTED, vocab_size)))
    ids_of, values_of = ([getattr(one, name) for one in parts] for name in ("ids", "values"))
    return Likely(torch.stack(ids_of), torch.stack(values_of)), logits[-1]


def _follow_sampling(logits: Tensor, ids: Tensor, sampler: Sampler, seed: int) -> SamplingStep:
    seen = torch.zeros_like(logits, dtype=torch.bool)
    seen[ids] = True
    [number] = uniforms([seed], [0])
    sampled = int(sample(sampler, logits, torch.tensor(number, device=logits.device), seen))
    if sampled < 0:
        raise not_finite()
    best = logits.topk(min(NUM_CANDIDATES, len(logits))).indices.tolist()
    candidates = best if sampled in best else [*best, sampled]

    def probabilities(rules: dict[str, float | int | None]) -> tuple[float, ...]:
        left = apply_rules(Sampler.model_validate(rules), logits, seen)
        if rules.get("temperature") == 0:
            left = torch.full_like(left, -torch.inf).index_fill(0, left.argmax(), 0.0)
        return tuple(left.softmax(dim=-1)[candidates].tolist())

    rules: dict[str, float | int | None] = {}
    stages = {"model": probabilities({})}
    for name, value in sampler:
        if value != Sampler.model_fields[name].default:
            rules[name] = value
            stages[name] = probabilities(rules)
    return SamplingStep(
        tuple(candidates), stages, None if sampler.temperature == 0 else number, sampled
    )


def _likeliest(values: Tensor, k: int) -> Likely:
    best = values.topk(k, dim=-1)
    return Likely(best.indices.cpu(), best.values.cpu())
