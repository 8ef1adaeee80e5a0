"""The size of a model's vocabulary where nobody gave one: that of the shards it reads."""

from groundup.data.shards import find_index
from groundup.runs.config import RunConfig


def with_vocabulary(config: RunConfig) -> RunConfig:
    """The run with the vocabulary of its shards, unless its settings give one.

    Shards that cannot be read change nothing: training says what is wrong with them.
    """
    if "vocab_size" in config.model.model_fields_set:
        return config
    index = find_index(config.data.shards)
    if index is None:
        return config
    model = config.model.model_copy(update={"vocab_size": index.vocab_size})
    return config.model_copy(update={"model": model})
