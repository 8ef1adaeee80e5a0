"""What a program brings to a run instead of settings and shards: a model, ids, a loss."""

import hashlib
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from groundup.data.batches.windows import IdArray, Ids
from groundup.data.shards import DataIds, Shards
from groundup.errors import ConfigError, DataError
from groundup.model import TransformerLM
from groundup.runs.config import RunConfig
from groundup.tokenizer import Tokenizer

Loss = Callable[[TransformerLM, Tensor, Tensor], Tensor]
"""Of a model, inputs and targets, both (rows, seq): the mean over the targets."""

_CHUNK_IDS = 1 << 22


@dataclass(frozen=True)
class OwnParts:
    """Parts of a run; None is what the settings say."""

    model: TransformerLM | None = None
    dataset: Ids | None = None
    validation: Ids | None = None
    loss: Loss | None = None

    @property
    def is_empty(self) -> bool:
        parts = (self.model, self.dataset, self.validation, self.loss)
        return all(part is None for part in parts)

    def check(self, config: RunConfig) -> RunConfig:
        """The settings with those of the model; an error where the parts cannot be a run."""
        if self.validation is not None and self.dataset is None:
            raise ConfigError("validation goes with a dataset: give both, or neither")
        if self.dataset is not None and config.tuning.chats:
            raise ConfigError("a dataset and tuning.chats both say what to learn: give one")
        if self.dataset is not None and config.data.mix:
            raise ConfigError("a dataset and data.mix both say what to learn: give one")
        for name in ("z_loss", "multi_token_weight"):
            if self.loss is not None and getattr(config, name):
                raise ConfigError(f"a loss of one's own has no part for {name}: set it to 0")
        if self.loss is not None and config.tuning.chats:
            raise ConfigError("tuning.chats has a loss of its own, over answers alone: give none")
        if self.model is None:
            return config
        if not isinstance(self.model, TransformerLM):
            raise ConfigError(
                f"model must be a TransformerLM, whose layers may be swapped, got "
                f"{type(self.model).__name__}"
            )
        return config.model_copy(update={"model": self.model.config})

    def data(
        self, config: RunConfig, tokenizer: Tokenizer
    ) -> tuple[Shards | IdArray, Shards | IdArray | None, DataIds]:
        """The dataset to train on, the one to validate with, and what to remember of them."""
        assert self.dataset is not None
        train = _as_rows(self.dataset)
        validation = None if self.validation is None else _as_rows(self.validation)
        splits = {"train": train} | ({} if validation is None else {"validation": validation})
        content = hashlib.sha256()
        for name, rows in splits.items():
            for begin in range(0, rows.num_ids, _CHUNK_IDS):
                ids = rows.read(begin, min(begin + _CHUNK_IDS, rows.num_ids))
                if int(ids.min()) < 0 or int(ids.max()) >= config.model.vocab_size:
                    raise DataError(
                        f"the {name} dataset has ids from {ids.min()} to {ids.max()}, but "
                        f"model.vocab_size is {config.model.vocab_size}"
                    )
                content.update(ids.astype("<u4").tobytes())
            content.update(name.encode())
        num_ids = {name: rows.num_ids for name, rows in splits.items()}
        found = DataIds(
            "a dataset of the caller's",
            content.hexdigest(),
            tokenizer.id,
            tokenizer.vocab_size,
            num_ids,
        )
        return train, validation, found


NO_PARTS = OwnParts()


def _as_rows(ids: Ids) -> Shards | IdArray:
    return ids if isinstance(ids, Shards | IdArray) else IdArray(ids)
