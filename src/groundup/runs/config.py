"""The settings of a training run: one tree, stored as YAML and set by flags.

Components declare their own sections (`ModelConfig`, `OptimizerConfig`, `ScheduleConfig`). Does not
import torch.
"""

import itertools
import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BeforeValidator, Field, ValidationError, model_validator

from groundup.config import MAX_STEPS, Seed, Settings, StepsOrFraction, flatten, parse_weights
from groundup.model.config import ModelConfig
from groundup.optim.config import OptimizerConfig
from groundup.optim.schedules import ScheduleConfig

NAME_PATTERN = r"^[A-Za-z0-9][A-Za-z0-9._+=-]*$"
_MAX_SEQUENCES = 10**7
DEFAULT_NUM_STEPS = 5_000
_SHARDS = Path("shards")
# The whole run, as a fraction of it.
_WHOLE = math.nextafter(1, 0)


class DataConfig(Settings):
    """Training data."""

    shards: Path = _SHARDS
    """Folder written by groundup data prepare; with data.mix, the one to validate on."""

    mix: tuple[str, ...] = ()
    """Shard folders sampled by weight, all of one tokenizer: stories=0.7 articles=0.3."""

    tokenizer: Path = Path("tokenizer.json")
    """Tokenizer of the shards; copied into the run folder."""

    skip_sequences: int = Field(default=0, ge=0, le=10**15)
    """Skip this many sequences of the data order, which an earlier run has trained on."""

    verify: bool = True
    """Verify the hash of every shard before the first step; otherwise only sizes."""

    @model_validator(mode="before")
    @classmethod
    def _resolve_mix(cls, values: Any) -> Any:
        mix = values.get("mix") if isinstance(values, Mapping) else None
        if isinstance(mix, Mapping):
            mix = [f"{name}={weight}" for name, weight in mix.items()]
        if not mix or not isinstance(mix, list | tuple):
            return values
        folders = parse_weights(map(str, mix))
        shards = values.get("shards") or _SHARDS
        if Path(str(shards)) == _SHARDS and str(_SHARDS) not in folders:
            shards = next(iter(folders))
        return {**values, "mix": tuple(map(str, mix)), "shards": shards}

    @property
    def folders(self) -> dict[Path, float]:
        """Shard folders and their weights."""
        weights = parse_weights(self.mix) or {str(self.shards): 1.0}
        return {Path(name): weight for name, weight in weights.items()}


class TuningConfig(Settings):
    """Fine-tuning on conversations (SFT) or pairs of answers (DPO), as groundup tune does it."""

    chats: tuple[Path, ...] = ()
    """Conversation files to train on instead of shards: JSON lines, JSON or CSV."""

    strict: bool = False
    """Stop at a record that is not a conversation, instead of skipping and listing it."""

    template: Path | None = None
    """Chat template file (Jinja). Default: the tokenizer's, else ChatML."""

    validation_fraction: float = Field(default=0.1, ge=0, le=0.5)
    """Fraction of the conversations held out for validation, at least three; 0 holds out none."""

    beta: float = Field(default=0.1, gt=0, le=1e6)
    """For DPO: how strongly the weights are held to those the run starts from."""

    lora_rank: int | None = Field(default=None, ge=1, le=2**16)
    """Train LoRA adapters of this rank plus the embeddings of special tokens; None trains all
weights."""


class Interval(Settings):
    """How often something happens."""

    every_steps: StepsOrFraction = 0.1
    """Interval in steps or, below 1, as a fraction of the run; 0 means only at the end."""


class EvaluationConfig(Interval):
    """Evaluation on the validation split; always once at the end."""

    num_windows: int | None = Field(default=256, ge=1, le=10**9)
    """Number of windows to evaluate, the same each time; None uses the whole split."""

    batch_size: int | None = Field(default=None, ge=1, le=_MAX_SEQUENCES)
    """Windows per batch. Default: the micro-batch size."""

    patience: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    """End the run after this many evaluations in a row without improvement; None disables this."""


class CheckpointConfig(Interval):
    """Checkpoints; one is also written at the end and on SIGINT or SIGTERM."""

    keep_last: int = Field(default=3, ge=1, le=MAX_STEPS)
    """How many recent checkpoints to keep."""

    keep_best: bool = True
    """Also keep the checkpoint with the lowest validation loss."""


class LoggingConfig(Interval):
    """Logging to metrics.jsonl, callbacks and the console."""

    every_steps: StepsOrFraction = 0.002
    """Interval in steps or, below 1, as a fraction of the run; 0 means only at the end."""


class SampleConfig(Interval):
    """Samples generated during training."""

    every_steps: StepsOrFraction = 0
    """Interval in steps or, below 1, as a fraction of the run; 0 generates none."""

    prompts: tuple[str, ...] = Field(default=("Once upon a time",), min_length=1)
    """Prompts to continue."""

    max_tokens: int = Field(default=64, ge=1, le=10**6)
    """Maximum tokens per sample."""

    temperature: float = Field(default=0.7, ge=0, le=1e6)
    """Sampling temperature; 0 is greedy. This and top_p are also the run's defaults for generation
    later."""

    top_p: float = Field(default=0.95, gt=0, le=1)
    """Sample from the smallest set of tokens whose probability reaches this (top-p)."""

    seed: Seed = 0
    """Seed of the samples, independent of training's random state."""


class DistributedConfig(Settings):
    """Distributed training under torchrun."""

    strategy: Literal["auto", "ddp", "fsdp", "hsdp"] = "auto"
    """ddp replicates the model on each rank, fsdp shards it over all ranks, hsdp shards within a
machine and replicates across machines. auto is ddp if the model fits, else fsdp or hsdp."""

    reduction: Literal["auto", "exact", "fast"] = "auto"
    """Gradient all-reduce: exact gives the same bits on any world size, fast leaves the summation
order to the backend. auto is exact on CPUs and with --deterministic."""

    activation_checkpointing: bool = False
    """Activation checkpointing: compute a block's activations again in the backward pass."""

    timeout_minutes: float = Field(default=10.0, gt=0, le=100_000)
    """Timeout of collectives; the run ends when a rank does not answer in time."""


class RunConfig(Settings):
    """All settings of a training run."""

    name: str | None = Field(default=None, pattern=NAME_PATTERN, max_length=200)
    """Name of the run and its folder. Default: the current time, or the name of the run that it
starts from and a suffix."""

    runs_folder: Path = Path("runs")
    """Folder for run folders."""

    start_from: Path | None = None
    """Initialize from this run folder's weights. Model and tokenizer must match; the context length
may differ and the vocabulary may grow."""

    continue_training: bool = False
    """Continue the run in start_from: keep its optimizer state where it fits, and end with the best
checkpoint, which may be the initial one."""

    num_steps: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    """Number of optimizer steps. Default: 5,000, or chosen from the number of conversations, if
neither minutes nor epochs is given."""

    minutes: float | None = Field(default=None, gt=0, le=10**7)
    """Train for this many minutes; the schedule follows the clock. num_steps may end the run
sooner."""

    epochs: float | None = Field(default=None, gt=0, le=10**6)
    """Train for this many epochs; ignored if num_steps is given."""

    batch_size: int = Field(default=32, ge=1, le=_MAX_SEQUENCES)
    """Sequences per optimizer step, over all ranks."""

    micro_batch_size: Annotated[int, Field(ge=1, le=_MAX_SEQUENCES)] | Literal["auto"] | None = (
        "auto"
    )
    """Sequences per forward pass, a divisor of batch_size; gradient accumulation does the rest.
auto: as many as fit; None: the whole batch."""

    max_grad_norm: float | None = Field(default=1.0, gt=0, le=1e12)
    """Clip the gradient norm to this value; None disables clipping."""

    z_loss: float = Field(default=0.0, ge=0, le=1e6)
    """Weight of the z-loss (squared log of the softmax denominator), which keeps logits small."""

    multi_token_weight: float = Field(default=0.0, ge=0, le=10)
    """Loss weight of predicting the token after the next (multi-token prediction); decays to 0 over
60% of the run."""

    max_skipped_steps: int = Field(default=5, ge=1, le=MAX_STEPS)
    """Stop after this many consecutive steps with non-finite loss or gradients."""

    seed: Seed = 0
    """Seed of the initial weights and the data order."""

    device: str = Field(default="auto", pattern=r"^(auto|cpu|mps|cuda(:[0-9]{1,9})?)$")
    """auto, cpu, cuda, cuda:N or mps; auto picks the fastest available."""

    precision: Literal["auto", "float32", "bfloat16", "float8"] = "auto"
    """Precision of matmuls; weights stay in float32. auto is bfloat16 on GPUs that support it.
float8 (Hopper and later) is bfloat16 with most training matmuls in 8 bits."""

    compile: Annotated[
        Literal["auto", "off", "blocks", "model"],
        # YAML reads off as false.
        BeforeValidator(lambda value: "off" if value is False else value),
    ] = "auto"
    """torch.compile each block, or the whole model; auto compiles blocks on CUDA only."""

    cuda_graph: bool = True
    """Capture the training step as a CUDA graph and replay it."""

    tf32: bool = True
    """Use TF32 for float32 matmuls on CUDA."""

    deterministic: bool = False
    """Use deterministic kernels; needed for exact resume on CUDA."""

    num_threads: int | None = Field(default=None, ge=1, le=1_024)
    """CPU threads for torch; changing it may change the last bits of the result."""

    parts: dict[str, str] = Field(default={})
    """Custom parts passed from Python (layers, loss, optimizer), by name and hash."""

    model: ModelConfig = ModelConfig()
    data: DataConfig = DataConfig()
    tuning: TuningConfig = TuningConfig()
    optimizer: OptimizerConfig = OptimizerConfig()
    schedule: ScheduleConfig = ScheduleConfig()
    evaluation: EvaluationConfig = EvaluationConfig()
    checkpoints: CheckpointConfig = CheckpointConfig()
    logging: LoggingConfig = LoggingConfig()
    samples: SampleConfig = SampleConfig()
    distributed: DistributedConfig = DistributedConfig()

    @property
    def evaluation_precision(self) -> Literal["auto", "float32", "bfloat16"]:
        """The precision for evaluation, and for training wherever float8 does not apply."""
        return "bfloat16" if self.precision == "float8" else self.precision

    @property
    def sequences_in_memory(self) -> int:
        """micro_batch_size if it is a number, else batch_size."""
        return self.micro_batch or self.batch_size

    @property
    def micro_batch(self) -> int | None:
        """micro_batch_size if it is a number, else None."""
        return self.micro_batch_size if isinstance(self.micro_batch_size, int) else None

    @property
    def tokens_per_step(self) -> int:
        return self.batch_size * self.model.context_length

    @property
    def run_folder(self) -> Path:
        """The folder of a run, which must have a name."""
        if self.name is None:
            raise ValueError("a run without a name has no folder yet")
        return self.runs_folder / self.name

    @model_validator(mode="before")
    @classmethod
    def _default_length(cls, values: Any) -> Any:
        lengths = ("num_steps", "minutes", "epochs")
        if not isinstance(values, Mapping):
            return values
        tuning = values.get("tuning") or {}
        is_map = isinstance(tuning, Mapping)
        is_tuned = tuning.get("chats") if is_map else getattr(tuning, "chats", ())
        if not is_tuned and all(values.get(name) is None for name in lengths):
            values = {**values, "num_steps": DEFAULT_NUM_STEPS}
        return translated(values)

    @model_validator(mode="after")
    def _check(self) -> "RunConfig":
        if self.batch_size % self.sequences_in_memory:
            raise ValueError(
                f"batch_size {self.batch_size} is not divisible by micro_batch_size "
                f"{self.micro_batch_size}; choose a divisor of batch_size"
            )
        if self.tuning.lora_rank is not None and self.start_from is None:
            raise ValueError("tuning.lora_rank needs a run to adapt; set start_from to its folder")
        if self.tuning.chats and self.multi_token_weight:
            raise ValueError("multi_token_weight is not supported with tuning.chats; set it to 0")
        return self


def translated(values: Mapping[str, Any]) -> Mapping[str, Any]:
    """Translate settings of earlier versions: data.mask_documents to model.document_separator, and
    fractions of the run, which had names of their own, to settings in steps."""
    values = {key: dict(one) if isinstance(one, Mapping) else one for key, one in values.items()}
    sections = [section for section in values.values() if isinstance(section, dict)]
    for section, name in itertools.product(sections, ("every", "warmup", "decay")):
        fraction, steps = section.pop(f"{name}_fraction", None), section.get(f"{name}_steps")
        if fraction is not None and steps is None:
            section[f"{name}_steps"] = min(fraction, _WHOLE)
        elif steps is None:
            section.pop(f"{name}_steps", None)
    data, model = values.get("data"), values.get("model", {})
    if isinstance(data, dict) and isinstance(model, dict) and data.get("mask_documents") is True:
        del data["mask_documents"]
        values["model"] = {"document_separator": "auto", **model}
    return values


def as_fractions(config: RunConfig, chosen: Collection[str] = ()) -> dict[str, Any]:
    """Convert settings in steps to fractions of num_steps, for runs of any length; returns them by
    dotted name. Settings in `chosen`, which the user has set, are not converted."""
    values = {
        name: min(_WHOLE, value / config.num_steps)
        for name, value in flatten(config.model_dump())
        if name.endswith((".every_steps", ".warmup_steps", ".decay_steps"))
        and config.num_steps is not None
        and value is not None
        and value >= 1
    }
    return {name: value for name, value in values.items() if name not in chosen}


def model_of(settings: Mapping[str, Any]) -> ModelConfig | None:
    """Build the ModelConfig from a run's settings by dotted names; None if they are invalid."""
    prefix = "model."
    values = {key[len(prefix) :]: settings[key] for key in settings if key.startswith(prefix)}
    try:
        return ModelConfig.model_validate(values) if values else None
    except ValidationError:
        return None
