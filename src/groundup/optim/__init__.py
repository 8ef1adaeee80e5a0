"""Optimizers, schedules, clipping and parameter groups; `cross_entropy` is the one of `nn`.

Names are resolved on first use, so that `groundup.optim.config` costs no torch import.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from groundup.nn.losses import cross_entropy
    from groundup.optim.adamw import AdamW
    from groundup.optim.build import build_optimizer, set_learning_rates
    from groundup.optim.clipping import clip_gradients, clip_scale, gradient_norm
    from groundup.optim.config import OptimizerConfig, ScheduleConfig
    from groundup.optim.muon import Muon
    from groundup.optim.parameter_groups import decay_groups, muon_groups
    from groundup.optim.schedules import cosine_schedule, learning_rate_at
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
    "learning_rate_at",
    "muon_groups",
    "set_learning_rates",
]

_NAMES_OF = {
    "nn.losses": "cross_entropy",
    "optim.adamw": "AdamW",
    "optim.build": "build_optimizer set_learning_rates",
    "optim.clipping": "clip_gradients clip_scale gradient_norm",
    "optim.config": "OptimizerConfig ScheduleConfig",
    "optim.muon": "Muon",
    "optim.parameter_groups": "decay_groups muon_groups",
    "optim.schedules": "cosine_schedule learning_rate_at",
    "optim.sgd": "SGD",
}
_HOME_OF = {name: home for home, names in _NAMES_OF.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"groundup.{_HOME_OF[name]}"), name)
    return value


def __dir__() -> list[str]:
    return sorted(__all__)
