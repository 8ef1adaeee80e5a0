"""How the next id is chosen: small values, each a rule on the logits, chained by a Sampler.

A rule takes logits (..., vocab_size) to logits; an id it rules out gets -inf.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Int
from torch import Tensor

from groundup.errors import CheckpointError, ConfigError
from groundup.nn import softmax


@dataclass(frozen=True)
class Greedy:
    """Only the likeliest id remains; of equals, the lowest."""

    def apply(self, logits: Float[Tensor, "... vocab"]) -> Float[Tensor, "... vocab"]:
        best = logits.argmax(dim=-1, keepdim=True)
        return torch.full_like(logits, -torch.inf).scatter(-1, best, 0.0)


@dataclass(frozen=True)
class Temperature:
    """Divides the logits by `temperature`: below 1 bolder, above 1 more even, 0 greedy."""

    temperature: float

    def __post_init__(self) -> None:
        if not (math.isfinite(self.temperature) and self.temperature >= 0):
            raise ConfigError(
                f"the temperature is {self.temperature}; it must be 0 (greedy) or more"
            )

    def apply(self, logits: Float[Tensor, "... vocab"]) -> Float[Tensor, "... vocab"]:
        if self.temperature == 0:
            return Greedy().apply(logits)
        # With the largest at 0, dividing by a tiny temperature cannot overflow upwards.
        return (logits - logits.amax(dim=-1, keepdim=True)) / self.temperature


@dataclass(frozen=True)
class TopK:
    """The `k` likeliest ids remain; among equals at the edge, the lower ones."""

    k: int

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or self.k < 1:
            raise ConfigError(f"top-k is {self.k}; it must be a whole number, 1 or more")

    def apply(self, logits: Float[Tensor, "... vocab"]) -> Float[Tensor, "... vocab"]:
        # topk does not say which of equals it takes; a stable sort does.
        order = logits.argsort(dim=-1, descending=True, stable=True)
        return logits.scatter(-1, order[..., self.k :], -torch.inf)


@dataclass(frozen=True)
class TopP:
    """The smallest set of likeliest ids whose probabilities reach `p` remains.

    Among equals at the edge the lower ids are in the set first.
    """

    p: float

    def __post_init__(self) -> None:
        if not 0 < self.p <= 1:
            raise ConfigError(f"top-p is {self.p}; it must be more than 0 and at most 1")

    def apply(self, logits: Float[Tensor, "... vocab"]) -> Float[Tensor, "... vocab"]:
        if self.p == 1:
            return logits
        ordered, order = logits.sort(dim=-1, descending=True, stable=True)
        probabilities = softmax(ordered, dim=-1)
        # An id is out when those before it have reached p; the first has none before it.
        reached_before = probabilities.cumsum(dim=-1) - probabilities
        ordered = ordered.masked_fill(reached_before >= self.p, -torch.inf)
        return torch.empty_like(logits).scatter(-1, order, ordered)


Rule = Greedy | Temperature | TopK | TopP


@dataclass(frozen=True)
class Sampler:
    """Applies its rules in order and draws one id from what they leave."""

    rules: tuple[Rule, ...] = ()

    @classmethod
    def of(
        cls, temperature: float = 1.0, top_k: int | None = None, top_p: float | None = None
    ) -> Sampler:
        """The usual chain: temperature, then top-k, then top-p."""
        rules: list[Rule] = [Temperature(temperature)]
        if top_k is not None:
            rules.append(TopK(top_k))
        if top_p is not None:
            rules.append(TopP(top_p))
        return cls(tuple(rules))

    def choose(
        self, logits: Float[Tensor, "... vocab"], generator: torch.Generator
    ) -> Int[Tensor, "..."]:
        """One id for each row, drawn on the CPU, so that a seed means the same on any device."""
        logits = logits.float().cpu()
        highest = logits.amax(dim=-1)
        if not bool(highest.isfinite().all()):
            raise CheckpointError(
                "the model's scores for the next id are not finite: its weights are damaged or its "
                "training went astray; use an earlier checkpoint"
            )
        for rule in self.rules:
            logits = rule.apply(logits)
        probabilities = softmax(logits, dim=-1)
        rows = probabilities.reshape(-1, probabilities.shape[-1])
        drawn = torch.multinomial(rows, num_samples=1, generator=generator)
        return drawn.reshape(probabilities.shape[:-1])
