"""The settings of optimizers. No torch here."""

from typing import Annotated, Literal, TypeAlias

from pydantic import Field

from groundup.config import Settings, named_classes

Fraction = Annotated[float, Field(ge=0, lt=1)]

OPTIMIZERS = named_classes("groundup.optim", __file__, "optimizer_name")
"""Torch optimizers. With `divides_matrices` their groups are of the kinds muon and adamw."""
OptimizerName: TypeAlias = Literal[tuple(OPTIMIZERS)]  # type: ignore[valid-type]


class OptimizerConfig(Settings):
    """Optimizer settings."""

    name: OptimizerName = "adamw"
    """adamw; muon for matrices in the blocks and adamw for the rest; or sgd with a 1/√step learning
rate on top of the schedule."""

    learning_rate: float = Field(default=1e-3, gt=0, le=1e15)
    """Peak learning rate; the schedule scales it."""

    adamw_learning_rate_factor: float = Field(default=1.0, gt=0, le=1e6)
    """With muon: learning rate of the parameters that adamw updates (embeddings, output layer, norm
gains), as a multiple of learning_rate."""

    betas: tuple[Fraction, Fraction] = (0.9, 0.95)
    """AdamW's betas."""

    eps: float = Field(default=1e-8, gt=0, le=1e6)
    """AdamW's epsilon."""

    weight_decay: float = Field(default=0.1, ge=0, le=1e6)
    """Decoupled weight decay of linear layers."""

    embedding_weight_decay: float | None = Field(default=None, ge=0, le=1e6)
    """Weight decay of the embedding matrix; none by default. Helps when training for several
epochs."""

    normalize_rows: bool = False
    """With muon: normalize each row of the update by its running second moment (NorMuon)."""

    momentum: Fraction = 0.95
    """Muon's momentum."""

    ema_fraction: float | None = Field(default=None, gt=0, le=1)
    """Keep an EMA of the weights over about this fraction of the run, and use it for evaluation,
samples and the saved model."""
