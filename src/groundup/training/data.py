"""What a run reads: checked shards, conversations or ids; batches of them, and what validates."""

import dataclasses
import logging
from dataclasses import dataclass
from pathlib import Path

import torch

from groundup.data.batches.loader import BatchLoader
from groundup.data.batches.order import MixedOrder, SampleOrder, ShuffledEpochs
from groundup.data.batches.windows import IdArray, join_shards
from groundup.data.chats.packing import PackedRows, ShuffledRows
from groundup.data.shards import (
    DataIds,
    Shards,
    check_shards,
    check_vocabulary,
    open_shards,
    read_index,
)
from groundup.data.shards.reading import check_tokenizer
from groundup.distributed.process_group import ALONE, World
from groundup.errors import ConfigError
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.tokenizer import Tokenizer
from groundup.training.evaluation import Evaluator
from groundup.training.overrides import Overrides, open_ids
from groundup.training.tuning import open_conversations, with_template

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunData:
    """The tokenizer of a run, and checked shards, ids, or conversations in rows."""

    tokenizer: Tokenizer
    train: Shards | IdArray | PackedRows
    validation: Shards | IdArray | PackedRows | None
    ids: DataIds

    @property
    def end_id(self) -> int | None:
        """The id behind every document of shards."""
        return self.train.index.end.id if isinstance(self.train, Shards) else None

    def epoch_rows(self, context_length: int) -> int:
        """How many rows of a batch an epoch has."""
        if isinstance(self.train, PackedRows):
            return self.train.num_rows
        return max(1, (self.train.num_ids - 1) // context_length)


def open_data(
    config: RunConfig, run: RunFolder, overrides: Overrides, *, resume: bool = False
) -> RunData:
    """Open what the settings name, checked against its index, the tokenizer and the model's
    vocabulary. A run that is resumed has its own copy of the tokenizer."""
    tokenizer = _open_tokenizer(config, run, resume=resume)
    if "data" in overrides:
        return RunData(tokenizer, *open_ids(overrides["data"], config, tokenizer))
    if config.tuning.chats:
        return RunData(tokenizer, *open_conversations(config, tokenizer))
    folder, folders = config.data.shards, [path for path, _ in _weighted(config)]
    index = read_index(folder)
    # A larger vocabulary would be no help with ids of another tokenizer.
    check_tokenizer(folder, index, tokenizer)
    check_vocabulary(index, config.model.vocab_size)
    train = join_shards(
        [
            open_shards(path, "train", tokenizer, index if path == folder else None)
            for path in folders
        ]
    )
    validation = None
    if "validation" in index.splits:
        validation = open_shards(folder, "validation", tokenizer, index)
    if validation is None or validation.num_ids < 2:
        _log.warning("%s has no validation split: there will be no validation loss", folder)
        validation = None
    splits = ("train",) if validation is None else ("train", "validation")
    ids = check_shards(folder, tokenizer, splits, full=config.data.verify, index=index)
    if config.data.mix:
        others = [path for path in folders if path != folder]
        full = config.data.verify
        mixed = [check_shards(path, tokenizer, ["train"], full=full) for path in others]
        ids = dataclasses.replace(
            ids,
            num_ids=ids.num_ids | {"train": train.num_ids},
            mix={str(path): other.content for path, other in zip(others, mixed, strict=True)},
        )
    return RunData(tokenizer, train, validation, ids)


def find_document_id(config: RunConfig, data: RunData) -> int | None:
    """The id that begins a document, which ends the one before; None if tokens may see others."""
    if not config.data.mask_documents or config.tuning.chats:
        return None
    if data.end_id is None:
        raise ConfigError(
            "data.mask_documents needs shards, which tell what ends a document: leave it out"
        )
    return data.end_id


def build_loader(
    config: RunConfig, rows: Shards | IdArray | PackedRows, world: World = ALONE
) -> BatchLoader:
    """A rank's part of the batch of every step."""
    order: SampleOrder
    if isinstance(rows, PackedRows):
        order = ShuffledRows(rows, config.seed)
    else:
        order = _window_order(config, rows.num_ids)
    return BatchLoader(
        rows,
        order,
        config.batch_size,
        config.micro_batch,
        torch.device(config.device),
        world.rank,
        world.size,
    )


def build_evaluator(config: RunConfig, data: RunData, world: World = ALONE) -> Evaluator | None:
    """What measures the run on its validation split; None without such a split."""
    if data.validation is None:
        return None
    return Evaluator(
        data.validation,
        data.tokenizer,
        config.model.context_length,
        config.evaluation.num_windows,
        config.evaluation.batch_size or config.sequences_in_memory,
        world=world,
    )


def _open_tokenizer(config: RunConfig, run: RunFolder, *, resume: bool) -> Tokenizer:
    if resume:
        return Tokenizer.load(run.tokenizer_file)
    if not config.data.tokenizer.exists():
        raise ConfigError(
            f"the tokenizer {config.data.tokenizer} does not exist: name the one that the shards "
            f"were made with by --data.tokenizer"
        )
    tokenizer = Tokenizer.load(config.data.tokenizer)
    if not config.tuning.chats:
        return tokenizer
    return with_template(tokenizer, config.tuning.template)


def _weighted(config: RunConfig) -> list[tuple[Path, float]]:
    """The folders that samples come from."""
    return [(path, weight) for path, weight in config.data.folders.items() if weight]


def _window_order(config: RunConfig, num_ids: int) -> SampleOrder:
    """Of one folder of shards, or of several that are mixed."""
    length, folders = config.model.context_length, _weighted(config)
    if len(folders) < 2:
        return ShuffledEpochs(num_ids, length, config.seed)
    sizes = [read_index(path).splits["train"].num_ids for path, _ in folders]
    seeds = [(config.seed + number) % 2**64 for number in range(len(sizes))]
    orders = [ShuffledEpochs(size, length, seed) for size, seed in zip(sizes, seeds, strict=True)]
    return MixedOrder(orders, [weight for _, weight in folders], config.seed)
