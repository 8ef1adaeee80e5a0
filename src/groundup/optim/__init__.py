"""Optimizers, schedules, clipping and parameter groups; `cross_entropy` is the one of `nn`.

Names are resolved on first use, so that `groundup.optim.config` costs no torch import.
"""

from typing import TYPE_CHECKING

from groundup.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from groundup.nn.losses import cross_entropy
    from groundup.optim.adamw import AdamW
    from groundup.optim.build import build_optimizer, set_learning_rates
    from groundup.optim.clipping import clip_gradients, clip_scale, gradient_norm
    from groundup.optim.config import OptimizerConfig, ScheduleConfig
    from groundup.optim.muon import Muon
    from groundup.optim.parameter_groups import decay_groups, muon_groups
    from groundup.optim.schedules import cosine_schedule, learning_rate_factor
    from groundup.optim.sgd import SGD

__all__ = [
    "SGD",
    "AdamW",
    "Muon",
    "OptimizerConfig",
    "ScheduleConfig",
    "build_optimizer",
    "clip_gradients",
    "clip_scale",
    "cosine_schedule",
    "cross_entropy",
    "decay_groups",
    "gradient_norm",
    "learning_rate_factor",
    "muon_groups",
    "set_learning_rates",
]

__getattr__, __dir__ = lazy_exports(
    __name__,
    {
        "adamw": "AdamW",
        "build": "build_optimizer set_learning_rates",
        "clipping": "clip_gradients clip_scale gradient_norm",
        "config": "OptimizerConfig ScheduleConfig",
        "groundup.nn.losses": "cross_entropy",
        "muon": "Muon",
        "parameter_groups": "decay_groups muon_groups",
        "schedules": "cosine_schedule learning_rate_factor",
        "sgd": "SGD",
    },
)
