"""Optimizers, schedules, clipping and parameter groups; `cross_entropy` is the one of `nn`.

Names are resolved on first use, so that `groundup.optim.config` costs no torch import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from groundup.nn.losses import cross_entropy
    from groundup.optim.adamw import AdamW
    from groundup.optim.build import build_optimizer, learning_rate_at, set_learning_rates
    from groundup.optim.clipping import clip_gradients, clip_scale, gradient_norm
    from groundup.optim.config import OptimizerConfig, ScheduleConfig
    from groundup.optim.muon import Muon
    from groundup.optim.parameter_groups import decay_groups, muon_groups
    from groundup.optim.schedules import (
        constant_schedule,
        cosine_schedule,
        linear_schedule,
        warmup_stable_decay_schedule,
    )
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
    "constant_schedule",
    "cosine_schedule",
    "cross_entropy",
    "decay_groups",
    "gradient_norm",
    "learning_rate_at",
    "linear_schedule",
    "muon_groups",
    "set_learning_rates",
    "warmup_stable_decay_schedule",
]

_NAMES_OF = {
    "adamw": "AdamW",
    "build": "build_optimizer learning_rate_at set_learning_rates",
    "clipping": "clip_gradients clip_scale gradient_norm",
    "config": "OptimizerConfig ScheduleConfig",
    "muon": "Muon",
    "parameter_groups": "decay_groups muon_groups",
    "schedules": "constant_schedule cosine_schedule linear_schedule warmup_stable_decay_schedule",
    "sgd": "SGD",
}
_HOME_OF = {name: home for home, names in _NAMES_OF.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module 'groundup.optim' has no attribute {name!r}")
    home = "nn.losses" if name == "cross_entropy" else f"optim.{_HOME_OF[name]}"
    value = getattr(import_module(f"groundup.{home}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
