"""The settings of optimizers and schedules. No torch here."""

from collections.abc import Mapping
from typing import Annotated, Any, ClassVar, Literal, TypeAlias

from pydantic import Field

from groundup.config import MAX_STEPS, Settings, named_classes
from groundup.optim.schedules import SHAPES

Fraction = Annotated[float, Field(ge=0, lt=1)]

OPTIMIZERS = named_classes("groundup.optim", __file__, "optimizer_name")
"""Torch optimizers. With `divides_matrices` their groups are of the kinds muon and adamw."""
OptimizerName: TypeAlias = Literal[tuple(OPTIMIZERS)]  # type: ignore[valid-type]


class OptimizerConfig(Settings):
    """How weights follow their gradients."""

    name: OptimizerName = "adamw"
    """adamw; muon for the matrices of the blocks with adamw for the rest; or plain sgd, whose
    learning rate falls with the root of the step on top of the schedule."""

    learning_rate: float = Field(default=1e-3, gt=0, le=1e15)
    """The maximum learning rate; the schedule says which fraction of it a step gets."""

    adamw_learning_rate_factor: float = Field(default=1.0, gt=0, le=1e6)
    """Under muon, the learning rate of what adamw moves (embeddings, output layer, gains) as a
    multiple of learning_rate."""

    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """Decay rates of adamw's running averages, of gradients and of their squares."""

    eps: float = Field(default=1e-8, gt=0, le=1e6)
    """Added to adamw's denominator."""

    weight_decay: float = Field(default=0.1, ge=0, le=1e6)
    """A step takes this fraction, times the learning rate, off each weight of a linear layer."""

    embedding_weight_decay: float | None = Field(default=None, ge=0, le=1e6)
    """The same for the embedding table, none if not given. It pays on text that is read several
    times."""

    normalize_rows: bool = False
    """Under muon, let all rows of a matrix move alike, by the mean of each row's squares over the
    last steps (NorMuon)."""

    momentum: Fraction = 0.95
    """Decay rate of muon's running average of gradients."""

    ema_fraction: float | None = Field(default=None, gt=0, le=1)
    """Keep an exponential average of the weights over about this fraction of the run's steps, and
    evaluate, sample and save it instead of the latest weights; none if not given."""

    removed: ClassVar[Mapping[str, tuple[Any, ...]]] = {
        "muon_learning_rate": (None,),
        "cautious_decay": (False,),
        "decay_embeddings": (False,),
        "orthogonalization_steps": (5,),
        "kernels": ("fused", "reference"),
    }


class ScheduleConfig(Settings):
    """How the learning rate changes over a run."""

    name: Literal[tuple(SHAPES)] = "cosine"  # type: ignore[valid-type]
    """After the warm-up: decay along half a cosine, decay linearly, stay constant, or stay constant
    and then decay linearly (wsd)."""

    warmup_steps: int | None = Field(default=None, ge=0, le=MAX_STEPS)
    """Linear warm-up steps; go before warmup_fraction if given."""

    warmup_fraction: float = Field(default=0.0, ge=0, le=1)
    """The fraction of the run that the warm-up takes."""

    min_learning_rate_ratio: float = Field(default=0.1, ge=0, le=1)
    """Where the decay ends, as a fraction of the maximum learning rate."""

    decay_steps: int | None = Field(default=None, ge=1, le=MAX_STEPS)
    """Steps of the decay; go before decay_fraction if given."""

    decay_fraction: float | None = Field(default=None, gt=0, le=1)
    """The fraction of the run that the decay takes. If not given, cosine and linear decay from the
    warm-up to the end of the run, and wsd over its last fifth."""
