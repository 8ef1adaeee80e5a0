"""A run's data: checked shards, conversations or ids, with their batches and evaluator."""

import hashlib
import logging
from dataclasses import dataclass, replace
from pathlib import Path

import torch

from groundup.data.batches.loader import BatchLoader
from groundup.data.batches.order import (
    IdArray,
    Ids,
    MixedOrder,
    SampleOrder,
    ShuffledEpochs,
    join_shards,
)
from groundup.data.chats import (
    PackedRows,
    ShuffledRows,
    encode_conversations,
    read_conversations,
    split,
)
from groundup.data.shards import (
    DataIds,
    Shards,
    check_shards,
    check_vocabulary,
    open_shards,
    read_index,
)
from groundup.distributed.process_group import ONE_PROCESS, ProcessGroup
from groundup.errors import ConfigError, DataError
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.chat_template import Message
from groundup.training.evaluation import Evaluator
from groundup.training.start import Overrides

_log = logging.getLogger(__name__)

_CHUNK_IDS = 1 << 22

Rows = Shards | IdArray | PackedRows


@dataclass(frozen=True)
class RunData:
    """A run's tokenizer and its checked shards, ids, or packed conversations."""

    tokenizer: Tokenizer
    train: Rows
    validation: Rows | None
    ids: DataIds

    @property
    def end_id(self) -> int | None:
        """The id that ends every document in shards."""
        return self.train.index.end.id if isinstance(self.train, Shards) else None

    @property
    def pairs(self) -> list[PackedRows]:
        """The splits if the data are pairs of answers, for DPO."""
        splits = (self.train, self.validation)
        return [one for one in splits if isinstance(one, PackedRows) and one.has_pairs]

    def epoch_rows(self, context_length: int) -> int:
        """The number of batch rows in an epoch."""
        if isinstance(self.train, PackedRows):
            return self.train.num_rows
        return max(1, (self.train.num_tokens - 1) // context_length)

    def loader(self, config: RunConfig, ranks: ProcessGroup = ONE_PROCESS) -> BatchLoader:
        """Loads this rank's part of every batch."""
        sizes, device = (config.batch_size, config.micro_batch), torch.device(config.device)
        order = _order(config, self.train)
        skip = config.data.skip_sequences
        return BatchLoader(self.train, order, *sizes, device, ranks.rank, ranks.size, skip)

    def evaluator(self, config: RunConfig, ranks: ProcessGroup = ONE_PROCESS) -> Evaluator | None:
        """Measures the validation loss; None without a validation split."""
        if self.validation is None:
            return None
        size = config.evaluation.batch_size or config.sequences_in_memory
        shape = config.model.context_length, config.evaluation.num_windows, size
        return Evaluator(self.validation, self.tokenizer, *shape, ranks)

    def log(self, config: RunConfig) -> None:
        """Log the location and size of the data."""
        splits = ", ".join(
            f"{count:,} ids for {name}" for name, count in self.ids.num_tokens.items()
        )
        if self.pairs:
            splits += f", in {len(self.pairs[0].conversations):,} pairs of answers (DPO)"
        _log.info("data in %s: %s", ", ".join(config.data.mix) or self.ids.folder, splits)
        if isinstance(self.train, PackedRows) and (num_cut := self.train.conversations.num_cut):
            limit = f"--context-length {config.model.context_length}"
            _log.warning("%d conversations cut at %s, or left out", num_cut, limit)


def open_data(
    config: RunConfig,
    run: RunFolder,
    overrides: Overrides,
    ranks: ProcessGroup = ONE_PROCESS,
    *,
    resume: bool = False,
) -> RunData:
    """Open the run's data, checked against the index, the tokenizer and the model's vocabulary. A
    resumed run uses its own copy of the tokenizer."""
    data = config.data
    # One rank per machine hashes the files.
    is_full = data.verify and ranks.local_rank == 0
    tokenizer = Tokenizer.load(run.tokenizer_file if resume else data.tokenizer)
    if config.tuning.chats and not resume:
        tokenizer = with_template(tokenizer, config.tuning.template)
    if "data" in overrides:
        return RunData(tokenizer, *_open_ids(overrides["data"], config, tokenizer))
    if config.tuning.chats:
        return RunData(tokenizer, *open_conversations(config, tokenizer))
    index = read_index(data.shards)
    folders = [path for path, weight in data.folders.items() if weight]
    train = join_shards([open_shards(path, "train", tokenizer) for path in folders])
    check_vocabulary(index, config.model.vocab_size)
    splits, validation = ["train"], None
    if "validation" in index.splits and index.splits["validation"].num_tokens > 1:
        splits.append("validation")
        validation = open_shards(data.shards, "validation", tokenizer, index)
    else:
        _log.warning("%s has no validation split: there will be no validation loss", data.shards)
    ids = check_shards(data.shards, tokenizer, splits, full=is_full, index=index)
    if data.mix:
        others = [path for path in folders if path != data.shards]
        found = [check_shards(path, tokenizer, ["train"], full=is_full) for path in others]
        mix = {str(path): one.content for path, one in zip(others, found, strict=True)}
        num_tokens = {**ids.num_tokens, "train": train.num_tokens}
        ids = replace(ids, num_tokens=num_tokens, mix=mix)
    return RunData(tokenizer, train, validation, ids)


def with_template(tokenizer: Tokenizer, template: Path | None = None) -> Tokenizer:
    """The tokenizer with a chat template: the file's, its own, or ChatML."""
    if template is not None:
        try:
            return tokenizer.with_chat(Path(template).read_text("utf-8"))
        except UnicodeDecodeError:
            raise ConfigError(f"the chat template {template} is not UTF-8") from None
    return tokenizer if tokenizer.chat_template is not None else tokenizer.with_chat()


def open_conversations(
    config: RunConfig, tokenizer: Tokenizer
) -> tuple[PackedRows, PackedRows | None, DataIds]:
    """The packed rows for training, the held-out rows, and their content ids."""
    context_length = config.model.context_length
    if config.model.vocab_size < tokenizer.vocab_size:
        raise ConfigError(
            f"vocab_size {config.model.vocab_size} is too small for a tokenizer of "
            f"{tokenizer.vocab_size} tokens; set the model's vocab_size to that or more"
        )
    conversations = read_conversations(config.tuning.chats, strict=config.tuning.strict)
    found = encode_conversations(conversations, tokenizer, context_length + 1)
    if found.has_pairs and config.z_loss:
        raise ConfigError("z_loss is not supported with pairs of answers: set it to 0")
    chosen, held_out = split(len(found), config.tuning.validation_fraction)
    train = PackedRows(found, chosen, context_length)
    validation = PackedRows(found, held_out, context_length) if len(held_out) else None
    names = ", ".join(map(str, config.tuning.chats))
    known = found.content_id, tokenizer.id, tokenizer.vocab_size
    return train, validation, DataIds(names, *known, _num_tokens(train, validation))


def held_out_questions(
    config: RunConfig, tokenizer: Tokenizer, count: int
) -> list[tuple[list[Message], str]]:
    """The turns before the first answer of some held-out conversations, and those answers."""
    conversations = list(read_conversations(config.tuning.chats, is_quiet=True))
    found = encode_conversations(conversations, tokenizer, config.model.context_length + 1)
    _, held_out = split(len(found), config.tuning.validation_fraction)
    questions = []
    for number in held_out[:count].tolist():
        messages = conversations[found.numbers[number]].messages
        first = [message["role"] for message in messages].index("assistant")
        questions.append((messages[:first], messages[first]["content"]))
    return questions


def _open_ids(
    data: Ids | tuple[Ids, Ids], config: RunConfig, tokenizer: Tokenizer
) -> tuple[Shards | IdArray, Shards | IdArray | None, DataIds]:
    """Training ids, validation ids, and their content ids."""
    parts = data if isinstance(data, tuple) else (data,)
    rows = [ids if isinstance(ids, Shards | IdArray) else IdArray(ids) for ids in parts]
    splits = dict(zip(("train", "validation"), rows, strict=False))
    content, num_known = hashlib.sha256(), min(config.model.vocab_size, tokenizer.vocab_size)
    for name, part in splits.items():
        for begin in range(0, part.num_tokens, _CHUNK_IDS):
            ids = part.read(begin, min(begin + _CHUNK_IDS, part.num_tokens))
            if int(ids.min()) < 0 or int(ids.max()) >= num_known:
                raise DataError(
                    f"the {name} dataset has ids from {ids.min()} to {ids.max()}, but "
                    f"tokenizer and model know {tokenizer.vocab_size} and {config.model.vocab_size}"
                )
            content.update(ids.astype("<u4").tobytes())
        content.update(name.encode())
    known = content.hexdigest(), tokenizer.id, tokenizer.vocab_size
    found = DataIds("a dataset of the caller's", *known, _num_tokens(*rows))
    return splits["train"], splits.get("validation"), found


def _num_tokens(*splits: Rows | None) -> dict[str, int]:
    names = ("train", "validation")
    return {
        name: one.num_tokens for name, one in zip(names, splits, strict=False) if one is not None
    }


def _order(config: RunConfig, rows: Rows) -> SampleOrder:
    """The order of rows: shuffled conversations, or windows of one text or a weighted mix."""
    length, seed = config.model.context_length, config.seed
    if isinstance(rows, PackedRows):
        return ShuffledRows(rows.num_rows, rows.row_length, seed)
    weights = {path: weight for path, weight in config.data.folders.items() if weight}
    if len(weights) < 2:
        return ShuffledEpochs(rows.num_tokens, length, seed)
    sizes = enumerate(read_index(path).splits["train"].num_tokens for path in weights)
    orders = [ShuffledEpochs(size, length, (seed + number) % 2**64) for number, size in sizes]
    return MixedOrder(orders, list(weights.values()), seed)
