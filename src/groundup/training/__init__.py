"""Training a run: the step, the loop, and the proof that it resumes exactly."""

from typing import TYPE_CHECKING

from groundup.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from groundup.training.loop import TrainSummary as TrainSummary
    from groundup.training.loop import train as train
    from groundup.training.metrics import Callback as Callback
    from groundup.training.verify import Comparison as Comparison
    from groundup.training.verify import verify_resume as verify_resume

__getattr__, __dir__, __all__ = lazy_exports(__name__, __file__)
