"""Predict a run's validation loss before training, and describe what such a loss means.

log(loss) is linear in the logarithms of five numbers: the validation losses of a unigram and a
bigram model counted on the text, that of a unigram model of a small sample, the length of the text,
and the number of training tokens. Fitted to runs of the recipe (docs/experiments/expectations.md).
"""

import math
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from groundup.data.batches.order import WindowReader, fixed_windows
from groundup.data.shards import Shards, find_index, open_shards, read_index
from groundup.planner import step_flops
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.runs.metrics_file import read_metrics
from groundup.training.recipe import choose_recipe

Ids = npt.NDArray[np.int64]

_MANY, _FEW, _STRETCH = 800_000, 100_000, 4_096
_DISCOUNT = 0.75
# Coefficients of 1, log T, log U, log A, log B, log T · log B and log F: T and U are the millions
# of tokens trained on and in the text, A and B the unigram and bigram loss, F that of a small
# sample.
_WEIGHTS = (-0.4136, -0.3457, 0.0301, 2.1574, 1.5152, 0.1747, -2.4104)
# Standard deviation of log(loss) on held-out texts.
_DEVIATION = 0.05
_NORMAL_90 = 1.645
# Runs of up to this many millions of tokens were fitted; beyond, the interval grows.
_MAX_FITTED = 3.0
# The fitted runs have more tokens than this.
_LEAST_TOKENS = 100_000

# What English and code look like from this many bits per byte on.
_MEANINGS = (
    (2.6, "pieces of words"),
    (2.0, "words, but no sentences yet"),
    (1.6, "phrases and short sentences"),
    (1.2, "sentences that seldom follow from each other"),
    (0.0, "sentences that follow from each other"),
)


@dataclass(frozen=True)
class Expectation:
    """A validation loss and its 90% interval."""

    loss: float
    low: float
    high: float

    def __str__(self) -> str:
        return f"{self.loss:.2f} ({self.low:.2f} to {self.high:.2f})"


class Outlook:
    """The expected loss of a run on prepared shards, in words."""

    def __init__(self, config: RunConfig, flops: float, num_steps: int | None = None) -> None:
        """flops: the compute that fits the time. num_steps: the maximum number of steps."""
        index = read_index(config.data.shards)
        kept = open_shards(config.data.shards, "validation", index=index)
        train = open_shards(config.data.shards, index=index)
        context = config.model.context_length
        starts = fixed_windows(kept.num_tokens, context, config.evaluation.num_windows)
        unseen = WindowReader(kept, context).read(starts).astype(np.int64)
        many, few = (count_losses(_sample(train, number), unseen) for number in (_MANY, _FEW))
        self._losses = *many, few[0]
        self._config, self._flops, self._num_tokens = config, flops, train.num_tokens
        sizes = index.splits["validation"]
        self._bits_per_byte = sizes.num_tokens / max(1, sizes.num_bytes) / math.log(2)
        per_step = config.tokens_per_step
        steps = flops / step_flops(config.model, config.batch_size)
        longest = (config.epochs or math.inf) * train.num_tokens / per_step
        self.is_cut = longest < min(steps, num_steps or math.inf)
        self.num_tokens = per_step * max(1.0, min(steps, longest, num_steps or math.inf))

    def expect(self, num_tokens: float) -> Expectation:
        """For a run that trains on this many tokens, repeats included."""
        trained, text = math.log(num_tokens / 1e6), math.log(self._num_tokens / 1e6)
        single, pair, single_of_few = map(math.log, self._losses)
        features = (1.0, trained, text, single, pair, trained * pair, single_of_few)
        middle = sum(weight * one for weight, one in zip(_WEIGHTS, features, strict=True))
        beyond = max(0.0, math.log10(num_tokens / 1e6 / _MAX_FITTED))
        spread = math.exp(_NORMAL_90 * _DEVIATION * (1 + beyond))
        loss = math.exp(middle)
        return Expectation(loss, loss / spread, loss * spread)

    def before(self) -> str:
        """The prediction, before the run begins."""
        expected = self.expect(self.num_tokens)
        bits = expected.loss * self._bits_per_byte
        passes = self.num_tokens / self._num_tokens
        lines = [
            f"expected after {passes:.2g} epochs: validation loss {expected}, "
            f"{bits:.2f} bits per byte: {meaning(bits)}"
        ]
        if self.is_cut:
            lines += [
                f"the run ends after {self._config.epochs:g} epochs, before the minutes are over: "
                f"more epochs would overfit; more text makes the model better"
            ]
        return "\n".join(lines)

    def after(self, run: RunFolder) -> str:
        """The prediction beside the result, and what ten times the minutes would give."""
        reached = read_metrics(run.metrics_file).last("validation_loss")
        model, expected = self._config.model, self.expect(self.num_tokens)
        first = f"validation loss {reached:.2f}, expected {expected}"
        longer = choose_recipe(
            flops=10 * self._flops,
            num_tokens=self._num_tokens,
            vocab_size=model.vocab_size,
            is_on_cpu=self._config.device == "cpu",
        )
        num_tokens = (longer.num_steps or 1) * longer.tokens_per_step
        later = self.expect(num_tokens)
        if num_tokens < 1.2 * self.num_tokens or later.loss > 0.98 * expected.loss:
            return f"{first}; more minutes would hardly lower it: give more text"
        bits = later.loss * self._bits_per_byte
        return f"{first}; ten times the minutes would give about {later}: {meaning(bits)}"


def find_outlook(config: RunConfig, flops: float, num_steps: int | None) -> Outlook | None:
    """The outlook; None without shards, without a validation split, or with too few tokens."""
    index = find_index(config.data.shards)
    kept = None if index is None else index.splits.get("validation")
    if kept is None or kept.num_tokens <= config.model.context_length:
        return None
    outlook = Outlook(config, flops, num_steps)
    return outlook if outlook.num_tokens >= _LEAST_TOKENS else None


def meaning(bits_per_byte: float) -> str:
    """What a model with such a loss generates."""
    return next(words for least, words in _MEANINGS if bits_per_byte >= least)


def count_losses(seen: Ids, unseen: Ids) -> tuple[float, float]:
    """Mean -ln p(id) and -ln p(id | previous id) in rows of unseen ids, by counts of seen ones:

        p(b | a) = (max(0, pairs(a, b) - D) + D · kinds(a) · p(b)) / pairs(a)

    with kinds(a) the ids that follow a, and p(b) from counts; p(b) where a was never seen.
    """
    size = 1 + max(int(seen.max()), int(unseen.max()))
    singles = np.bincount(seen, minlength=size) + 0.5
    pairs, counts = np.unique(seen[:-1] * size + seen[1:], return_counts=True)
    starts = np.bincount(seen[:-1], minlength=size)
    kinds = np.bincount(pairs // size, minlength=size)
    first, second = unseen[:, :-1].ravel(), unseen[:, 1:].ravel()
    asked = first * size + second
    indices = np.searchsorted(pairs, asked).clip(max=len(pairs) - 1)
    together = np.where(pairs[indices] == asked, counts[indices], 0)
    alone = (singles / singles.sum())[second]
    found = np.maximum(0, together - _DISCOUNT) + _DISCOUNT * kinds[first] * alone
    found = np.where(starts[first] > 0, found / np.maximum(1, starts[first]), alone)
    return float(-np.log(alone).mean()), float(-np.log(found).mean())


def _sample(shards: Shards, number: int) -> Ids:
    """About this many ids, in stretches spread over the text."""
    if number >= shards.num_tokens:
        return shards.read(0, shards.num_tokens).astype(np.int64)
    last = shards.num_tokens - _STRETCH
    begins = np.linspace(0, max(0, last), max(1, number // _STRETCH)).astype(int).tolist()
    return np.concatenate([shards.read(one, one + _STRETCH) for one in begins]).astype(np.int64)
