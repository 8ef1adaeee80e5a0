"""Choose settings for a text, a machine and a time.

The rules reproduce the recipes tuned for minutes on two CPU cores (4 layers of 96) and a minute on
an H200 (4 of 512), and interpolate between and beyond them, untuned (docs/log.md,
docs/experiments/race.md). The machine's speed enters as the FLOP/s that training achieves.
"""

import contextlib
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groundup.checkpoint import CheckpointFolder
from groundup.config import flatten, load_settings, load_yaml
from groundup.data.chats import are_pairs
from groundup.data.shards import content_id, find_index
from groundup.errors import ConfigError
from groundup.model.config import ModelConfig
from groundup.planner import step_flops
from groundup.runs.config import DataConfig, RunConfig, as_fractions, translated
from groundup.runs.folder import RunFolder, resolve_run_path
from groundup.tokenizer import Tokenizer
from groundup.training.data import with_template
from groundup.training.machine import find_peak
from groundup.training.resolve import resolve_device, with_vocabulary
from groundup.training.start import settings_from

GUESSED_UTILIZATION = 0.4
"""Assumed MFU before a step is measured."""

_WIDTHS = (64, 96, 128, 192, 256, 384, 512, 640, 768, 1_024, 1_280, 1_536, 2_048)
# Total FLOPs / (parameters in the blocks)²: about ten tokens per parameter.
_FLOPS_PER_SQUARED_PARAMETER = 100
# Most parameters per token of text, but not below the minimum size of a useful model.
_PARAMETERS_PER_TOKEN = 0.6
_MIN_PARAMETERS = 800_000
_MAX_EPOCHS = 10
# When starting from another model; the context limit leaves a CPU enough steps.
_MAX_EPOCHS_FROM, _LONGEST_CONTEXT = 4, 512
# Typical of BPE on English, code and most European languages.
_BYTES_PER_TOKEN = 3.6
_OCCURRENCES_PER_TOKEN = 150
_TOKENS_PER_WINDOW = 256 * 150
# Fewer steps want shorter averages; in a single epoch they leave no time for tied embeddings to pay
# off (docs/log.md).
_FEW_STEPS = 1_500
_LONG_CONTEXT_PARAMETERS = 30_000_000
# Assumed for a run without a file and without minutes.
_USUAL_MINUTES = 10.0
# Learning rate of fine-tuning, measured on a small model; wider ones want less (published results).
_TUNING_RATE, _TUNING_WIDTH, _TUNING_POWER = 6e-3, 128, 2.0
# LoRA adapters want a higher learning rate than full fine-tuning, DPO a lower one.
_ADAPTER_FACTOR, _PAIRS_FACTOR = 2, 0.1
_TUNING_DEFAULTS: dict[str, Any] = {
    "optimizer.weight_decay": 0.0,
    "schedule.name": "linear",
    "schedule.warmup_steps": 0.05,
    "schedule.min_learning_rate_ratio": 0.0,
    "evaluation.every_steps": 0.1,
    "evaluation.patience": 4,
    "checkpoints.every_steps": 0.1,
    "checkpoints.keep_last": 1,
    "logging.every_steps": 0.05,
}
# Continued training uses this fraction of the run's peak learning rate, times the root of the new
# length over the old. It is constant, then decays to zero (docs/experiments/more.md).
_MORE_RATE, _MIN_MORE_RATE, _MAX_MORE_RATE, _MORE_DECAY = 0.25, 0.1, 0.5, 0.5
_MORE_SCHEDULE: dict[str, Any] = {
    "schedule.name": "wsd",
    "schedule.warmup_steps": 0,
    "schedule.decay_steps": _MORE_DECAY,
    "schedule.min_learning_rate_ratio": 0.0,
}
# Mask documents shorter than this many contexts: longer ones seldom share a window.
_MASKED_CONTEXTS = 2


def choose_recipe(
    *,
    flops: float,
    num_bytes: int | None = None,
    num_tokens: int | None = None,
    vocab_size: int | None = None,
    d_model: int | None = None,
    document_bytes: int | None = None,
    num_steps: int | None = None,
    max_steps: int | None = None,
    is_exportable: bool = True,
    is_on_cpu: bool = True,
    source: RunFolder | None = None,
) -> RunConfig:
    """The settings, without name and data, that should reach the lowest validation loss.

    flops: the compute that fits the time.
    num_bytes, num_tokens: size of the text; give either.
    document_bytes: the typical length of its documents, if known.
    num_steps: the length of the run. Default: follows from `flops`.
    is_exportable: use only layers that other programs support.
    is_on_cpu: elsewhere document masks cost speed.
    source: the run to start from; its model and training settings are used.
    """
    tokens = num_tokens if num_tokens is not None else max(1.0, (num_bytes or 0) / _BYTES_PER_TOKEN)
    if d_model is None:
        by_text = max(_MIN_PARAMETERS, _PARAMETERS_PER_TOKEN * tokens)
        wanted = min(math.sqrt(flops / _FLOPS_PER_SQUARED_PARAMETER), by_text)
        d_model = min(_WIDTHS, key=lambda width: abs(math.log(_in_blocks(width) / wanted)))
    in_blocks = _in_blocks(d_model)
    if vocab_size is None:
        # Each token occurs often, and the output layer is no larger than the blocks.
        most = min(tokens / _OCCURRENCES_PER_TOKEN, in_blocks / d_model)
        vocab_size = max(512, min(32_768, 2 ** int(math.log2(max(512, most)))))
    context = 512 if in_blocks >= _LONG_CONTEXT_PARAMETERS else 256
    document_tokens = math.inf if document_bytes is None else document_bytes / _BYTES_PER_TOKEN
    is_masked = document_tokens < _MASKED_CONTEXTS * context and is_on_cpu
    if document_tokens < context / 4:
        context //= 2
    counts = range(max(1, d_model // (32 if d_model <= 256 else 64)), 0, -1)
    model = ModelConfig(
        vocab_size=vocab_size,
        context_length=context,
        d_model=d_model,
        num_layers=_num_layers(d_model),
        num_heads=next((count for count in counts if d_model % (2 * count) == 0), 1),
        document_separator="auto" if is_masked else None,
    )
    begun = {} if source is None else continued_settings(source, {"num_steps": 1})
    if source is not None:
        context = min(source.read_config().model.context_length, _LONGEST_CONTEXT)
        begun |= {"model.context_length": context, "data.shards": DataConfig().shards}
        begun |= {"data.mix": (), "data.skip_sequences": 0, "tuning.chats": ()}
        model = load_settings(RunConfig, None, begun).model
    max_epochs = _MAX_EPOCHS if source is None else _MAX_EPOCHS_FROM
    budget = min(flops / (step_flops(model, 1) / context), max_epochs * tokens)
    batch_tokens = 2 ** round(math.log2(2.1 * math.sqrt(max(budget, 1.0))))
    batch_size = max(1, batch_tokens // context)
    num_steps = num_steps or max(1, round(budget / (batch_size * context)))
    num_steps = num_steps if max_steps is None else min(num_steps, max_steps)
    epochs = num_steps * batch_size * context / tokens
    values = {
        "num_steps": num_steps,
        "epochs": max_epochs,
        "batch_size": batch_size,
        "evaluation.every_steps": 1 / (8 if num_steps >= _FEW_STEPS else 4),
        # Depends only on the data, so that results compare between machines.
        "evaluation.num_windows": min(1_024, max(16, round(tokens / _TOKENS_PER_WINDOW))),
        "checkpoints.every_steps": 1 / 4,
        "checkpoints.keep_last": 1,
        "logging.every_steps": 1 / 20,
        "samples.every_steps": 1 / 4,
        "samples.max_tokens": 48,
    }
    if source is not None:
        rate = continued_settings(source, {"num_steps": num_steps})["optimizer.learning_rate"]
        values["optimizer.learning_rate"] = rate
        return load_settings(RunConfig, None, {**begun, **values})
    values |= {f"model.{name}": value for name, value in model.model_dump().items()}
    values |= _learning(d_model, epochs, num_steps)
    if not is_exportable:
        values |= {"model.gated_attention": True, "model.value_embeddings": "projection"}
    return load_settings(RunConfig, None, values)


def _num_layers(d_model: int) -> int:
    return max(4, round(d_model / 128))


def _in_blocks(d_model: int) -> int:
    """Parameters in the blocks of a model of this width."""
    return 12 * _num_layers(d_model) * d_model**2


def _learning(d_model: int, epochs: float, num_steps: int) -> dict[str, Any]:
    """Optimizer, schedule and initialization."""
    learning_rate = 1.6e-2 * (128 / d_model) ** 0.7 / (2 if epochs > 4 else 1)
    values: dict[str, Any] = {
        "model.initialization": "gpt2",
        "model.zero_outputs": True,
        "optimizer.name": "muon",
        "optimizer.learning_rate": float(f"{learning_rate:.1e}"),
        "optimizer.weight_decay": round(min(1.0, max(0.1, 0.3 * epochs)), 1),
        "optimizer.betas": (0.5, 0.99),
        "schedule.name": "linear",
        "schedule.warmup_steps": 1 / 50,
        "schedule.min_learning_rate_ratio": 0.0,
    }
    if num_steps >= _FEW_STEPS:
        values |= {
            "multi_token_weight": 0.3,
            "optimizer.betas": (0.6, 0.99),
            "optimizer.adamw_learning_rate_factor": 3.0,
            "optimizer.normalize_rows": True,
        }
    elif epochs < 1:
        return values | {"optimizer.momentum": 0.85, "optimizer.adamw_learning_rate_factor": 3.0}
    return values | {
        "model.tie_embeddings": True,
        "model.qk_norm": True,
        "optimizer.ema_fraction": 0.05,
    }


def make_config(
    given: Mapping[str, Any], *, file: Path | None = None, source: RunFolder | None = None
) -> RunConfig:
    """The settings of a new run.

    given: the user's choices, by dotted name. file: a YAML file of settings, overridden by those.
    source: the run to start from, with its model and tokenizer. Without a file, the new run
        continues that run's training.
    """
    in_file = dict(flatten(translated(load_yaml(file)))) if file is not None else {}
    if source is not None:
        found = continued_settings(source, given) if file is None else settings_from(source)
    elif file is None:
        found = _recipe_for(load_settings(RunConfig, None, given), given)
    else:
        found = {}
    values = {name: value for name, value in found.items() if name not in in_file} | dict(given)
    if given.get("minutes") is not None and given.get("num_steps") is None:
        counted = load_settings(RunConfig, file, {**values, "minutes": None, "epochs": None})
        values |= as_fractions(counted, given)
        values |= {"num_steps": None, "epochs": values.get("epochs")}
    return with_vocabulary(load_settings(RunConfig, file, values))


def continued_settings(source: RunFolder, given: Mapping[str, Any]) -> dict[str, Any]:
    """The settings for continued training: the source's, but for length and schedule. Text that it
    has not read comes first. An imported model has no training settings: those of fine-tuning are
    used.
    """
    values = settings_from(source)
    if all(given.get(name) is None for name in ("minutes", "num_steps", "epochs")):
        values["minutes"] = _USUAL_MINUTES
    trained = source.read_environment().get("data")
    if not isinstance(trained, dict):
        rate = _tuning_rate(values["model.d_model"])
        schedule = {**_MORE_SCHEDULE, "schedule.warmup_steps": 0.05}
        return {**values, **schedule, "continue_training": True, "optimizer.learning_rate": rate}
    config = source.read_config()
    own = dict(flatten(config.model_dump(exclude={"name", "runs_folder", "parts"})))
    with contextlib.suppress(ConfigError):
        resolve_device(config)
        own_device = ("device", "precision", "compile")
        values |= {name: own[name] for name in own_device}
    steps = max(CheckpointFolder(source.checkpoints).steps(), default=0)
    rate = config.optimizer.learning_rate
    if not config.continue_training:
        part = _MORE_RATE * math.sqrt(_times_as_long(source, steps, {**values, **given}))
        rate *= min(_MAX_MORE_RATE, max(_MIN_MORE_RATE, part))
    begun = {path: resolve_run_path(path, source.path, config) for path in config.data.folders}
    mix = [f"{begun[path]}={weight}" for path, weight in config.data.folders.items()]
    chats = [resolve_run_path(path, source.path, config) for path in config.tuning.chats]
    values |= {
        "continue_training": True,
        "data.shards": resolve_run_path(config.data.shards, source.path, config),
        "data.mix": mix if config.data.mix else (),
        "data.skip_sequences": config.data.skip_sequences + config.batch_size * steps,
        "tuning.chats": chats,
        "tuning.template": None,
        "micro_batch_size": "auto",
        "multi_token_weight": 0.0,
        "optimizer.learning_rate": float(f"{rate:.3g}"),
        **_MORE_SCHEDULE,
    }
    lengths = {"num_steps": None, "minutes": None, "epochs": None, "device": "auto"}
    lengths |= {"precision": "auto", "compile": "auto"}
    values = {**own, **as_fractions(config), **lengths, **values}
    index = find_index(Path(given.get("data.shards") or values["data.shards"]))
    is_other = index is not None and content_id(index) != trained.get("content")
    is_other = is_other and not config.tuning.chats
    orders = ("seed", "data.mix", "tuning.chats", "model.context_length")
    if is_other or any(name in given and given[name] != values[name] for name in orders):
        # The order of rows differs: it is unknown which were read.
        values["data.skip_sequences"] = 0
    if "data.shards" in given:
        values["data.mix"] = ()
    return values


def _times_as_long(source: RunFolder, num_steps: int, values: Mapping[str, Any]) -> float:
    """The length of a new run relative to its source, in steps or time; 1 if unknown."""
    outcome = source.read_outcome()
    seconds = 0.0 if outcome is None else float(outcome.cost.get("wall_seconds", 0))
    if values.get("num_steps") is not None:
        return float(values["num_steps"]) / max(1, num_steps)
    return 60 * float(values["minutes"]) / seconds if values.get("minutes") and seconds else 1.0


def _tuning_rate(d_model: int) -> float:
    rate = _TUNING_RATE * min(1.0, _TUNING_WIDTH / d_model) ** _TUNING_POWER
    return float(f"{rate:.1e}")


def _recipe_for(config: RunConfig, given: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes that fit the data and the time."""
    index = find_index(config.data.shards)
    if index is None:
        return {}
    config = resolve_device(config)
    d_model = given.get("model.d_model")
    num_steps = None if given.get("num_steps") is None else config.num_steps
    split = index.splits["train"]
    seconds = 60 * (config.minutes or _USUAL_MINUTES)
    recipe = choose_recipe(
        flops=GUESSED_UTILIZATION * (find_peak(config) or 1e11) * seconds,
        num_tokens=max(1, split.num_tokens),
        vocab_size=index.vocab_size,
        d_model=None if d_model is None else config.model.d_model,
        document_bytes=split.num_bytes // max(1, split.num_documents),
        num_steps=num_steps if config.minutes is None else None,
        max_steps=num_steps,
        is_on_cpu=config.device == "cpu",
    )
    values = recipe.model_dump(exclude_defaults=True)
    values.pop("samples", None)
    if given.get("optimizer.name") not in (None, recipe.optimizer.name):
        # Its learning rates do not suit other optimizers.
        del values["optimizer"]
    return dict(flatten(values))


def tuning_config(source: RunFolder, given: Mapping[str, Any]) -> RunConfig:
    """The settings of a run that fine-tunes another one.

    given: the user's choices by dotted name, tuning.chats and name included.
    """
    # A conversation is one document.
    values = {**settings_from(source), "model.document_separator": None}
    tokenizer = with_template(Tokenizer.load(source.tokenizer_file), given.get("tuning.template"))
    if tokenizer.vocab_size > values["model.vocab_size"]:
        # GPU matmuls want rows of a multiple of 16 bytes.
        values["model.vocab_size"] = -(-tokenizer.vocab_size // 8) * 8
    factor = 1.0 if given.get("tuning.lora_rank") is None else _ADAPTER_FACTOR
    factor *= _PAIRS_FACTOR if are_pairs(given["tuning.chats"]) else 1
    values["optimizer.learning_rate"] = factor * _tuning_rate(values["model.d_model"])
    merged = {**_TUNING_DEFAULTS, **values, **given, "start_from": source.path}
    return load_settings(RunConfig, None, merged)
