"""How to split a compute budget between the size of a model and the text it learns from.

The rule of Hoffmann et al., "Training Compute-Optimal Large Language Models" (arXiv 2203.15556,
2022): both should grow alike, which comes to about 20 tokens a parameter.
"""

import math

SOURCE = "Hoffmann et al. 2022, arXiv 2203.15556: about 20 tokens a parameter"

_TOKENS_PER_PARAMETER = 20
# A weight takes two operations a token forward and four backward.
_FLOPS_PER_WEIGHT_AND_TOKEN = 6


def optimal_tokens(num_parameters: int) -> int:
    """The tokens after which a larger model would have been the better use of the compute."""
    return _TOKENS_PER_PARAMETER * num_parameters


def optimal_parameters(training_flops: float) -> int:
    """The size N whose 20 N tokens cost the budget: 6 · N · 20 N = training_flops."""
    per_square = _FLOPS_PER_WEIGHT_AND_TOKEN * _TOKENS_PER_PARAMETER
    return round(math.sqrt(training_flops / per_square))
