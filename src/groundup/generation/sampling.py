"""How the next id is sampled: small values, each a rule on the logits, chained by a Sampler.

A rule takes logits (..., vocab_size) to logits; an id it rules out gets -inf. A sample is decided
by one number in [0, 1), computed from the seed and the position: no state, no order of sampling.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from groundup.data.counter_random import random_uint64
from groundup.errors import CheckpointError, ConfigError
from groundup.generation.selection import keep_best, keep_mass

NO_ID = -1
"""Stands for an id where the logits were not finite."""
STREAM = 0x7E87
"""Of the random numbers of texts. Any number, as long as it never changes: samples depend on it."""

_BLOCK = 128
# Beyond these the text is the same, but float32, in which rules compute, would overflow. Below the
# least temperature it cannot tell the logits of equals from all others.
_LEAST_TEMPERATURE = 1e-6
_MOST = 1e30
_MOST_IDS = 2**31 - 1
# Far outside this range logits would leave float32's.
_PENALTIES = (0.01, 100)


@dataclass(frozen=True)
class Greedy:
    """Only the likeliest id remains; of equals, the lowest."""

    def apply(self, logits: Float[Tensor, "... vocab"]) -> Float[Tensor, "... vocab"]:
        best = logits.argmax(dim=-1, keepdim=True)
        return torch.full_like(logits, -torch.inf).scatter(-1, best, 0.0)


@dataclass(frozen=True)
class Temperature:
    """logits / temperature. Below 1: likelier tokens; above 1: more random; 0: greedy.

    A temperature below a millionth is 0.
    """

    temperature: float

    def __post_init__(self) -> None:
        if not (_is_number(self.temperature) and self.temperature >= 0):
            raise ConfigError(
                f"the temperature is {self.temperature}; it must be 0 (greedy) or more"
            )
        is_tiny = self.temperature < _LEAST_TEMPERATURE
        _set(self, "temperature", 0.0 if is_tiny else min(float(self.temperature), _MOST))

    def apply(self, logits: Float[Tensor, "... vocab"]) -> Float[Tensor, "... vocab"]:
        if self.temperature == 0:
            return Greedy().apply(logits)
        if self.temperature == 1:
            return logits
        # With the largest at 0, dividing by a tiny temperature cannot overflow upwards.
        return (logits - logits.amax(dim=-1, keepdim=True)) / self.temperature


@dataclass(frozen=True)
class TopK:
    """The `k` likeliest ids remain; among equals at the edge, the lower ones."""

    k: int

    def __post_init__(self) -> None:
        if type(self.k) is not int or self.k < 1:
            raise ConfigError(f"top-k is {self.k}; it must be an integer, 1 or more")
        _set(self, "k", min(self.k, _MOST_IDS))

    def apply(self, logits: Float[Tensor, "... vocab"]) -> Float[Tensor, "... vocab"]:
        if self.k >= logits.shape[-1]:
            return logits
        # topk does not say which of equals it takes, so it is asked for the value at the edge only.
        edge = logits.topk(self.k, dim=-1).values[..., -1:]
        return keep_best(logits, edge, torch.full_like(edge, self.k, dtype=torch.long))


@dataclass(frozen=True)
class TopP:
    """The smallest set of likeliest ids whose probabilities reach `p` remains.

    Among equals at the edge the lower ids are in the set first.
    """

    p: float

    def __post_init__(self) -> None:
        if not (_is_number(self.p) and 0 < self.p <= 1):
            raise ConfigError(f"top-p is {self.p}; it must be more than 0 and at most 1")

    def apply(self, logits: Float[Tensor, "... vocab"]) -> Float[Tensor, "... vocab"]:
        return logits if self.p == 1 else keep_mass(logits, self.p)


@dataclass(frozen=True)
class MinP:
    """Ids at least `p` times as likely as the likeliest one remain."""

    p: float

    def __post_init__(self) -> None:
        if not (_is_number(self.p) and 0 <= self.p <= 1):
            raise ConfigError(f"min-p is {self.p}; it must be from 0 to 1")

    def apply(self, logits: Float[Tensor, "... vocab"]) -> Float[Tensor, "... vocab"]:
        if self.p == 0:
            return logits
        edge = logits.amax(dim=-1, keepdim=True) + math.log(self.p)
        return logits.masked_fill(logits < edge, -torch.inf)


@dataclass(frozen=True)
class RepetitionPenalty:
    """Makes ids that the text already holds less likely: a positive logit is divided by `penalty`,
    a negative one multiplied. 1 changes nothing, less than 1 makes them likelier."""

    penalty: float

    def __post_init__(self) -> None:
        least, most = _PENALTIES
        if not (_is_number(self.penalty) and least <= self.penalty <= most):
            raise ConfigError(
                f"the repetition penalty is {self.penalty}; it must be from {least} to {most}"
            )

    def apply(
        self,
        logits: Float[Tensor, "... vocab"],
        seen: Bool[Tensor, "... vocab"] | None = None,
    ) -> Float[Tensor, "... vocab"]:
        if seen is None or self.penalty == 1:
            return logits
        lowered = torch.where(logits > 0, logits / self.penalty, logits * self.penalty)
        # An infinite logit would leave nothing to sample from.
        most = torch.finfo(logits.dtype).max
        return torch.where(seen, lowered.clamp(-most, most), logits)


Rule = Greedy | Temperature | TopK | TopP | MinP | RepetitionPenalty


@dataclass(frozen=True)
class Sampler:
    """Applies its rules in order and samples one id from what they leave."""

    rules: tuple[Rule, ...] = ()

    @classmethod
    def of(
        cls,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        min_p: float | None = None,
        repetition_penalty: float | None = None,
    ) -> Sampler:
        """The usual chain: repetition penalty, temperature, then top-k, top-p and min-p.

        Each argument is that of its rule; None leaves the rule out.

        temperature: divides the logits; 0 is greedy.
        top_k: keep this many of the likeliest ids.
        top_p: keep the fewest likeliest ids whose probabilities sum to this.
        min_p: keep ids at least this many times as likely as the likeliest.
        repetition_penalty: above 1, ids that the text holds become less likely.
        """
        chain: list[tuple[Callable[[Any], Rule], float | None]] = [
            (RepetitionPenalty, repetition_penalty),
            (Temperature, temperature),
            (TopK, top_k),
            (TopP, top_p),
            (MinP, min_p),
        ]
        return cls(tuple(rule(value) for rule, value in chain if value is not None))

    @property
    def needs_history(self) -> bool:
        """Whether a rule asks which ids the text already holds."""
        return any(isinstance(rule, RepetitionPenalty) for rule in self.rules)

    def sample(
        self,
        logits: Float[Tensor, "... vocab"],
        uniforms: Float[Tensor, "..."],
        seen: Bool[Tensor, "... vocab"] | None = None,
    ) -> Int[Tensor, "..."]:
        """One id for each row, NO_ID where its logits are not finite.

        logits    what the model gives the ids of the vocabulary
        uniforms  a number in [0, 1) for each row: the id is where it falls in the cumulative
                  distribution, in id order
        seen      which ids the text of each row holds, for the repetition penalty
        """
        logits = logits.float()
        if logits.device.type == "mps":
            # It has no float64, in which sums are made below.
            logits, seen = logits.cpu(), None if seen is None else seen.cpu()
        is_finite = logits.amax(dim=-1).isfinite()
        for rule in self.rules:
            if isinstance(rule, RepetitionPenalty):
                logits = rule.apply(logits, seen)
            elif isinstance(rule, Greedy) or rule == Temperature(0):
                return torch.where(is_finite, logits.argmax(dim=-1), NO_ID)
            else:
                logits = rule.apply(logits)
        return torch.where(is_finite, _invert(logits, uniforms), NO_ID)


class Uniforms:
    """`uniforms[i]` is the number in [0, 1) that decides the i-th new id of a seed's text."""

    def __init__(self, seed: int) -> None:
        self._seed = seed
        self._block: list[float] = []
        self._first = 0

    def __getitem__(self, index: int) -> float:
        if not self._first <= index < self._first + len(self._block):
            # One call computes many, since a call costs far more than a number.
            self._first = index - index % _BLOCK
            self._block = uniforms(self._seed, self._first, _BLOCK)
        return self._block[index - self._first]


def uniforms(seed: int, first: int, num: int) -> list[float]:
    """The numbers of `num` indices from `first` on, of 32 bits each.

    seed: of the text.
    first: the first index.
    num: how many.
    """
    indices = np.arange(first, first + num, dtype=np.uint64)
    bits = random_uint64(seed, STREAM, indices) >> np.uint64(32)
    numbers: list[float] = (bits.astype(np.float64) * 2.0**-32).tolist()
    return numbers


def not_finite() -> CheckpointError:
    return CheckpointError(
        "the model's logits for the next id are not finite: its weights are damaged or its "
        "training diverged; use an earlier checkpoint"
    )


def _invert(logits: Tensor, uniforms: Tensor) -> Tensor:
    """The first id whose cumulative probability is more than the row's number.

    Summed in float64: the last sum times a number below 1 of 32 bits is less than the sum then, so
    that no id without probability is ever found.
    """
    weights = torch.exp(logits - logits.amax(dim=-1, keepdim=True))
    sums = weights.cumsum(dim=-1, dtype=torch.float64)
    marks = uniforms.to(sums.device, torch.float64).unsqueeze(-1) * sums[..., -1:]
    return torch.searchsorted(sums, marks, right=True).squeeze(-1)


def _is_number(value: object) -> bool:
    if not isinstance(value, int | float) or isinstance(value, bool):
        return False
    # Integers of any length compare, but not all of them are floats.
    return -sys.float_info.max <= value <= sys.float_info.max


def _set(rule: Rule, name: str, value: float) -> None:
    """Give a frozen rule this value while it is made: equal rules then have equal values."""
    object.__setattr__(rule, name, value)
