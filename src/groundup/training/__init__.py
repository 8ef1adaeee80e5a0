"""Training a run: the step, the loop, and the proof that it resumes exactly."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from groundup.training.loop import TrainSummary, train
    from groundup.training.verify import ResumeReport, verify_resume

_HOME_OF = {
    "ResumeReport": "verify",
    "TrainSummary": "loop",
    "train": "loop",
    "verify_resume": "verify",
}

__all__ = ["ResumeReport", "TrainSummary", "train", "verify_resume"]


def __getattr__(name: str) -> Any:
    if name not in _HOME_OF:
        raise AttributeError(f"module 'groundup.training' has no attribute {name!r}")
    return getattr(import_module(f"groundup.training.{_HOME_OF[name]}"), name)
