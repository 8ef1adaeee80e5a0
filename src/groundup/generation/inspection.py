"""Inspect how a model processes a prompt: tokens and their nearest neighbors, attention weights,
predictions of every layer (logit lens), and how the next id is sampled."""

import base64
from typing import Any

import torch
from torch import Tensor

from groundup.generation.language_model import LanguageModel
from groundup.generation.request import Sampler
from groundup.generation.sampling import apply_rules, not_finite, sample, uniforms
from groundup.model import TransformerLM

MAX_TOKENS = 64
"""Maximum number of tokens inspected: attention weights grow with its square."""

NUM_NEIGHBOURS = 6
NUM_PREDICTED = 5
NUM_CANDIDATES = 12


@torch.no_grad()
def inspect_prompt(
    language_model: LanguageModel, prompt: str, sampler: Sampler, seed: int = 0
) -> dict[str, Any]:
    """Trace the first MAX_TOKENS tokens of a prompt through the model, as a JSON object; a token is
    [id, list of bytes].

    tokens: the tokens; is_cut says whether the prompt has more.
    neighbours: the nearest tokens of each token, by cosine similarity of embeddings.
    attention: base64 of one byte per weight (255 for 1), ordered by layer, head, query, key.
    predicted: next-token probabilities if the output layer read the residual stream before each
        block, and after the last one ("logit lens").
    sampling: how `generate` samples the first new id with `seed`; see `_follow_sampling`.
    """
    model, vocab = language_model.model, language_model.tokenizer.vocab
    all_ids = language_model.encode_prompt(prompt)
    ids = all_ids[:MAX_TOKENS][: model.config.context_length]

    def spell(ids: list[Any]) -> list[Any]:
        return [spell(id) if isinstance(id, list) else [id, list(vocab[id])] for id in ids]

    def list_best(values: Tensor, k: int) -> dict[str, Any]:
        best = values.topk(min(k, values.shape[-1]), dim=-1)
        rounded = best.values.cpu().double().round(decimals=4).tolist()
        return {"tokens": spell(best.indices.tolist()), "values": rounded}

    row = torch.tensor(ids, device=model.device)
    weights = model.attention_weights(row[None])[:, 0].float().cpu()
    last, seen = model.observe(row[None], model.blocks, lambda _, inputs: inputs[0])
    hidden = torch.cat([*map(model.final_norm, seen), last])
    logits = model.logits(hidden)[..., : language_model.tokenizer.vocab_size].float()
    sampling = _follow_sampling(logits[-1, -1], row, sampler, seed)
    return {
        "tokens": spell(ids),
        "is_cut": len(all_ids) > len(ids),
        "num_layers": len(weights),
        "num_heads": weights.shape[1],
        "neighbours": list_best(_cosines(model, row, logits.shape[-1]), NUM_NEIGHBOURS),
        "attention": base64.b64encode((weights * 255).round().byte().numpy().tobytes()).decode(),
        "predicted": list_best(logits.softmax(dim=-1), NUM_PREDICTED),
        "sampling": sampling | {"candidates": spell(sampling["candidates"])},
    }


def _cosines(model: TransformerLM, ids: Tensor, vocab_size: int) -> Tensor:
    table = model.token_embedding.weight[:vocab_size].float()
    table = table / table.norm(dim=-1, keepdim=True).clamp_min(1e-12)
    cosines: Tensor = table[ids] @ table.T
    cosines[torch.arange(len(ids)), ids] = -2.0  # Exclude the token itself.
    return cosines


def _follow_sampling(logits: Tensor, ids: Tensor, sampler: Sampler, seed: int) -> dict[str, Any]:
    """Trace sampling from the model's probabilities to one id.

    candidates: the most likely ids before any rule, and the sampled one if it is not among them.
    stages: their probabilities according to the model ("model") and after each active rule.
    number: the random number in [0, 1) that decided; None for greedy decoding.
    """
    seen = torch.zeros_like(logits, dtype=torch.bool)
    seen[ids] = True
    [number] = uniforms([seed], [0])
    sampled = int(sample(sampler, logits, torch.tensor(number, dtype=torch.float64), seen))
    if sampled < 0:
        raise not_finite()
    best = logits.topk(min(NUM_CANDIDATES, len(logits))).indices.tolist()
    candidates = best if sampled in best else [*best, sampled]

    def probabilities(rules: dict[str, float | int | None]) -> list[float]:
        left = apply_rules(Sampler.model_validate(rules), logits, seen)
        if rules.get("temperature") == 0:
            left = torch.full_like(left, -torch.inf).index_fill(0, left.argmax(), 0.0)
        chosen: list[float] = left.softmax(dim=-1)[candidates].tolist()
        return chosen

    rules: dict[str, float | int | None] = {}
    stages = {"model": probabilities({})}
    for name, value in sampler:
        if value != Sampler.model_fields[name].default:
            rules[name] = value
            stages[name] = probabilities(rules)
    chosen_by = None if sampler.temperature == 0 else number
    return {"candidates": candidates, "stages": stages, "number": chosen_by, "sampled": sampled}
