"""Optimizers, schedules and clipping. Lazy, so that `groundup.optim.config` imports no torch."""

from typing import TYPE_CHECKING

from groundup.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from groundup.nn.losses import cross_entropy as cross_entropy
    from groundup.optim.adamw import AdamW as AdamW
    from groundup.optim.build import build_optimizer as build_optimizer
    from groundup.optim.clipping import clip_gradients as clip_gradients
    from groundup.optim.config import OptimizerConfig as OptimizerConfig
    from groundup.optim.muon import Muon as Muon
    from groundup.optim.schedules import ScheduleConfig as ScheduleConfig
    from groundup.optim.schedules import cosine_schedule as cosine_schedule
    from groundup.optim.sgd import SGD as SGD

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
