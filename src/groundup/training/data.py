"""What a run reads: checked shards, conversations or ids; batches of them, and what validates."""

import dataclasses
import logging
from dataclasses import dataclass

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
from groundup.distributed.process_group import ALONE, World
from groundup.errors import ConfigError
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.tokenizer import Tokenizer
from groundup.training.evaluation import Evaluator
from groundup.training.overrides import Overrides, open_ids
from groundup.training.tuning import open_conversations, with_template

_log = logging.getLogger(__name__)

Rows = Shards | IdArray | PackedRows


@dataclass(frozen=True)
class RunData:
    """The tokenizer of a run, and checked shards, ids, or conversations in rows."""

    tokenizer: Tokenizer
    train: Rows
    validation: Rows | None
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

    def document_id(self, config: RunConfig) -> int | None:
        """The id that begins a document, which ends the one before; None if tokens may see others
        than their own."""
        if not config.data.mask_documents or config.tuning.chats:
            return None
        if self.end_id is None:
            raise ConfigError("data.mask_documents needs shards, which tell what ends a document")
        return self.end_id

    def loader(self, config: RunConfig, world: World = ALONE) -> BatchLoader:
        """A rank's part of the batch of every step."""
        sizes, device = (config.batch_size, config.micro_batch), torch.device(config.device)
        order = _order(config, self.train)
        return BatchLoader(self.train, order, *sizes, device, world.rank, world.size)

    def evaluator(self, config: RunConfig, world: World = ALONE) -> Evaluator | None:
        """What measures the run on its validation split; None without such a split."""
        if self.validation is None:
            return None
        size = config.evaluation.batch_size or config.sequences_in_memory
        shape = config.model.context_length, config.evaluation.num_windows, size
        return Evaluator(self.validation, self.tokenizer, *shape, world)

    def describe(self, config: RunConfig) -> str:
        """Where the data lie, and how much there is, in a line."""
        splits = ", ".join(f"{count:,} ids for {name}" for name, count in self.ids.num_ids.items())
        return f"data in {', '.join(config.data.mix) or self.ids.folder}: {splits}"


def open_data(
    config: RunConfig, run: RunFolder, overrides: Overrides, *, resume: bool = False
) -> RunData:
    """Open what the settings name, checked against its index, the tokenizer and the model's
    vocabulary. A run that is resumed has its own copy of the tokenizer."""
    data = config.data
    tokenizer = Tokenizer.load(run.tokenizer_file if resume else data.tokenizer)
    if config.tuning.chats and not resume:
        tokenizer = with_template(tokenizer, config.tuning.template)
    if "data" in overrides:
        return RunData(tokenizer, *open_ids(overrides["data"], config, tokenizer))
    if config.tuning.chats:
        rows, held_out, ids = open_conversations(config, tokenizer)
        if num_cut := rows.conversations.num_cut:
            limit = f"--context-length {config.model.context_length}"
            _log.warning("%d conversations cut at %s, or left out", num_cut, limit)
        return RunData(tokenizer, rows, held_out, ids)
    index = read_index(data.shards)
    folders = [path for path, weight in data.folders.items() if weight]
    train = join_shards([open_shards(path, "train", tokenizer) for path in folders])
    check_vocabulary(index, config.model.vocab_size)
    splits, validation = ["train"], None
    if "validation" in index.splits and index.splits["validation"].num_ids > 1:
        splits.append("validation")
        validation = open_shards(data.shards, "validation", tokenizer, index)
    else:
        _log.warning("%s has no validation split: there will be no validation loss", data.shards)
    ids = check_shards(data.shards, tokenizer, splits, full=data.verify, index=index)
    if data.mix:
        others = [path for path in folders if path != data.shards]
        found = [check_shards(path, tokenizer, ["train"], full=data.verify) for path in others]
        mix = {str(path): one.content for path, one in zip(others, found, strict=True)}
        num_ids = {**ids.num_ids, "train": train.num_ids}
        ids = dataclasses.replace(ids, num_ids=num_ids, mix=mix)
    return RunData(tokenizer, train, validation, ids)


def _order(config: RunConfig, rows: Rows) -> SampleOrder:
    """Which rows a step takes: conversations, windows of one text, or of several by weight."""
    length, seed = config.model.context_length, config.seed
    if isinstance(rows, PackedRows):
        return ShuffledRows(rows, seed)
    weights = {path: weight for path, weight in config.data.folders.items() if weight}
    if len(weights) < 2:
        return ShuffledEpochs(rows.num_ids, length, seed)
    sizes = enumerate(read_index(path).splits["train"].num_ids for path in weights)
    orders = [ShuffledEpochs(size, length, (seed + number) % 2**64) for number, size in sizes]
    return MixedOrder(orders, list(weights.values()), seed)
