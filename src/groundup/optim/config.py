"""The settings of optimizers and schedules. No torch here."""

from typing import Annotated, Literal

from pydantic import Field

from groundup.config import MAX_STEPS, Settings
from groundup.nn.limits import Kernels

Fraction = Annotated[float, Field(ge=0, lt=1)]


class OptimizerConfig(Settings):
    """How weights follow their gradients."""

    name: Literal["adamw", "sgd", "muon"] = "adamw"
    """adamw; muon for the matrices of the blocks with adamw for the rest; or plain sgd, whose
    learning rate falls with the root of the step on top of the schedule."""

    learning_rate: float = Field(1e-3, gt=0, le=1e15)
    """The maximum learning rate; the schedule says which fraction of it a step gets."""

    muon_learning_rate: float | None = Field(None, gt=0, le=1e15)
    """Learning rate of the matrices under muon; learning_rate if not given, for muon's steps are
    scaled to the size of adamw's."""

    adamw_learning_rate_factor: float = Field(1.0, gt=0, le=1e6)
    """Under muon, the learning rate of what adamw moves (embeddings, output layer, gains) as a
    multiple of learning_rate."""

    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """Decay rates of adamw's running averages, of gradients and of their squares."""

    eps: float = Field(1e-8, gt=0, le=1e6)
    """Added to adamw's denominator."""

    weight_decay: float = Field(0.1, ge=0, le=1e6)
    """A step takes this fraction, times the learning rate, off each weight of a linear layer."""

    cautious_decay: bool = False
    """Under muon, let weights of matrices decay only where the step makes them smaller too; about
    half of them do, so twice the weight_decay is as strong."""

    normalize_rows: bool = False
    """Under muon, let all rows of a matrix move alike, by the mean of each row's squares over the
    last steps (NorMuon)."""

    decay_embeddings: bool = False
    """Apply weight decay to the embedding table too."""

    embedding_weight_decay: float | None = Field(None, ge=0, le=1e6)
    """Weight decay of the embedding table; if not given, weight_decay or 0 as decay_embeddings
    says."""

    momentum: Fraction = 0.95
    """Decay rate of muon's running average of gradients."""

    orthogonalization_steps: int = Field(5, ge=1, le=100)
    """Steps of muon's iteration; more come closer to orthogonal."""

    average_over: float | None = Field(None, gt=0, le=1)
    """Keep an exponential average of the weights over about this fraction of the run's steps, and
    evaluate, sample and save it instead of the latest weights; none if not given."""

    kernels: Kernels = "fused"
    """adamw, and muon on CUDA, in few passes over memory, or by their formulas."""


class ScheduleConfig(Settings):
    """How the learning rate changes over a run."""

    name: Literal["cosine", "linear", "constant", "wsd"] = "cosine"
    """After the warm-up: decay along half a cosine, decay linearly, stay constant, or stay constant
    and then decay linearly (wsd)."""

    warmup_steps: int = Field(0, ge=0, le=MAX_STEPS)
    """Linear warm-up steps."""

    min_learning_rate_ratio: float = Field(0.1, ge=0, le=1)
    """Where the decay ends, as a fraction of the maximum learning rate."""

    decay_steps: int | None = Field(None, ge=1, le=MAX_STEPS)
    """Steps of the decay. If not given, cosine and linear decay from the warm-up to the end of the
    run, and wsd over its last fifth."""
