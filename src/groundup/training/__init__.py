"""Training a run: the step, the loop, and the proof that it resumes exactly."""

from typing import TYPE_CHECKING

from groundup.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from groundup.training.loop import TrainSummary, train
    from groundup.training.verify import Comparison, verify_resume

__all__ = ["Comparison", "TrainSummary", "train", "verify_resume"]

__getattr__, __dir__ = lazy_exports(
    __name__, {"loop": "TrainSummary train", "verify": "Comparison verify_resume"}
)
