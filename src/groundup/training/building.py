"""The parts of a run, made from its settings: checked data, model, optimizer, batches."""

import logging
from dataclasses import dataclass

import torch

from groundup.data.batches.loader import BatchLoader
from groundup.data.batches.order import RandomWindows, SampleOrder, ShuffledEpochs
from groundup.data.shards import DataIds, Shards, check_shards, check_vocabulary, open_shards
from groundup.model import TransformerLM
from groundup.optim.build import build_optimizer
from groundup.planner import check_holdable
from groundup.runs.config import RunConfig
from groundup.runtime import memory_bytes, set_seed
from groundup.tokenizer import Tokenizer
from groundup.training.evaluation import Evaluator
from groundup.training.execution import compile_model
from groundup.training.state import TrainingState

_log = logging.getLogger(__name__)


@dataclass(frozen=True)
class RunData:
    """What a run reads: checked shards, and the tokenizer they were made with."""

    tokenizer: Tokenizer
    train: Shards
    validation: Shards | None
    ids: DataIds


def open_data(config: RunConfig, tokenizer: Tokenizer) -> RunData:
    """Open the shards, checked against their index, the tokenizer and the model's vocabulary."""
    folder = config.data.shards
    train = open_shards(folder, "train", tokenizer)
    check_vocabulary(train.index, config.model.vocab_size)
    validation = None
    if "validation" in train.index.splits:
        validation = open_shards(folder, "validation", tokenizer)
    # To predict a token takes one before it.
    if validation is None or validation.num_ids < 2:
        _log.warning("%s has no validation split: there will be no validation loss", folder)
        validation = None
    splits = ("train",) if validation is None else ("train", "validation")
    ids = check_shards(folder, tokenizer, splits, full=config.data.verify)
    return RunData(tokenizer, train, validation, ids)


def build_state(config: RunConfig) -> TrainingState:
    """A model with its first weights, on the run's device, and its optimizer."""
    check_holdable(config.model, memory_bytes())
    set_seed(config.seed)
    # Made on the CPU, so that a seed gives the same weights whatever they move to.
    model = TransformerLM.from_config(config.model, device="cpu").to(torch.device(config.device))
    compile_model(model, config)
    optimizer = build_optimizer(model, config.optimizer)
    if config.device.startswith("cuda"):
        # A number and a tensor round differently, and a recorded step can only read a tensor: with
        # numbers in the plain steps a resumed run would not have the bits of an uninterrupted one.
        for group in optimizer.param_groups:
            group["lr"] = torch.tensor(float(group["lr"]), device=config.device)
    return TrainingState(model, optimizer, config.tokens_per_step)


def build_loader(config: RunConfig, shards: Shards) -> BatchLoader:
    """The batches of every step, in the order that the settings ask for."""
    kind = RandomWindows if config.data.order == "random" else ShuffledEpochs
    order: SampleOrder = kind(shards.num_ids, config.model.context_length, config.seed)
    return BatchLoader(
        shards, order, config.batch_size, config.micro_batch, torch.device(config.device)
    )


def build_evaluator(config: RunConfig, data: RunData) -> Evaluator | None:
    """The fixed windows of the validation split; None where there is no such split."""
    if data.validation is None:
        return None
    return Evaluator(
        data.validation,
        data.tokenizer,
        config.model.context_length,
        config.evaluation.num_windows,
        config.evaluation.batch_size or config.sequences_in_memory,
    )
