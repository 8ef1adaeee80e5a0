"""The settings of optimizers and schedules. No torch here."""

from typing import Annotated, Literal

from pydantic import Field

from groundup.config import MAX_STEPS, Settings

Share = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Settings):
    """How weights follow their gradients."""

    name: Literal["adamw", "sgd", "muon"] = "adamw"
    """adamw; muon for the matrices of the blocks with adamw for the rest; or plain sgd, whose rate
    falls with the root of the step on top of the schedule."""

    learning_rate: float = Field(1e-3, gt=0, le=1e15)
    """The greatest learning rate; the schedule says how much of it a step gets."""

    muon_learning_rate: float | None = Field(None, gt=0, le=1e15)
    """Learning rate of the matrices under muon; learning_rate if not given, for muon's steps are
    scaled to the size of adamw's."""

    betas: tuple[Share, Share] = (0.9, 0.95)
    """How much of adamw's running averages, of gradients and of their squares, a step keeps."""

    eps: float = Field(1e-8, gt=0, le=1e6)
    """Added to adamw's denominator."""

    weight_decay: float = Field(0.1, ge=0, le=1e6)
    """A step takes this share, times the learning rate, off each weight of a linear layer."""

    decay_embeddings: bool = False
    """Let the embedding table decay too."""

    momentum: Share = 0.95
    """How much of muon's running average of gradients a step keeps."""

    orthogonalization_steps: int = Field(5, ge=1, le=100)
    """Steps of muon's iteration; more come closer to orthogonal."""

    kernels: Literal["fused", "reference"] = "fused"
    """adamw in one pass over memory, or by its formula."""


class ScheduleConfig(Settings):
    """How the learning rate changes over a run."""

    name: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    """After the warm-up: fall along half a cosine, fall in a line, stay, or stay and then fall in a
    line (wsd)."""

    warmup_steps: int = Field(0, ge=0, le=MAX_STEPS)
    """Steps of the rise in a line at the beginning."""

    min_learning_rate_ratio: float = Field(0.1, ge=0, le=1)
    """Where the fall ends, in parts of the greatest learning rate."""

    decay_steps: int | None = Field(None, ge=1, le=MAX_STEPS)
    """Steps that the fall takes. If not given, cosine and linear fall from the warm-up to the end
    of the run, and wsd over its last fifth."""
