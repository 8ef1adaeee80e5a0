"""The records of a run sent on to TensorBoard, Weights & Biases or trackio; none is required.

They get what metrics.jsonl gets. Their packages are imported only when a setting asks for them.
"""

import importlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from groundup.errors import MissingExtraError
from groundup.runs.config import RunConfig

_log = logging.getLogger(__name__)


class Tracker(Protocol):
    """Takes records as they come."""

    def write(self, record: dict[str, Any]) -> None: ...
    def close(self) -> None: ...


def open_trackers(config: RunConfig, folder: Path) -> list[Tracker]:
    """The trackers that the settings ask for, in a fixed order."""
    makers: list[tuple[bool, Callable[[RunConfig, Path], Tracker]]] = [
        (config.logging.tensorboard, TensorBoardTracker),
        (config.logging.wandb, WandbTracker),
        (config.logging.trackio, TrackioTracker),
    ]
    return [_Guarded(make(config, folder)) for is_wanted, make in makers if is_wanted]


class TensorBoardTracker:
    """Event files in the run folder: `tensorboard --logdir runs` shows them."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        module = _import("torch.utils.tensorboard", "logging.tensorboard", "tensorboard")
        self._writer = module.SummaryWriter(str(folder / "tensorboard"))

    def write(self, record: dict[str, Any]) -> None:
        for name, value in figures_of(record).items():
            self._writer.add_scalar(name, value, record["step"])
        for number, text in enumerate(record.get("samples", ())):
            self._writer.add_text(f"sample {number}", text, record["step"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class WandbTracker:
    """A run of the same name at Weights & Biases; a resume goes on with it."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        module = _import("wandb", "logging.wandb", "wandb")
        self._run = module.init(
            project=config.logging.project,
            name=config.name,
            id=config.name,
            dir=str(folder),
            config=config.model_dump(mode="json"),
            resume="allow",
        )

    def write(self, record: dict[str, Any]) -> None:
        self._run.log(figures_of(record), step=record["step"])

    def close(self) -> None:
        self._run.finish()


class TrackioTracker:
    """A run of the same name at trackio."""

    def __init__(self, config: RunConfig, folder: Path) -> None:
        module = _import("trackio", "logging.trackio", "trackio")
        self._run = module.init(
            project=config.logging.project,
            name=config.name,
            config=config.model_dump(mode="json"),
            resume="allow",
        )

    def write(self, record: dict[str, Any]) -> None:
        self._run.log(figures_of(record), step=record["step"])

    def close(self) -> None:
        self._run.finish()


class _Guarded:
    """A tracker that fails is left out from then on: the run is worth more than its curves."""

    def __init__(self, tracker: Tracker) -> None:
        self._tracker: Tracker | None = tracker

    def write(self, record: dict[str, Any]) -> None:
        self._try(lambda tracker: tracker.write(record))

    def close(self) -> None:
        self._try(lambda tracker: tracker.close())

    def _try(self, action: Callable[[Tracker], None]) -> None:
        if self._tracker is None:
            return
        try:
            action(self._tracker)
        except Exception as error:
            name = type(self._tracker).__name__
            _log.warning("%s failed and gets no more records: %s", name, error)
            self._tracker = None


def figures_of(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of a record but its step, which trackers take apart."""
    return {
        name: value
        for name, value in record.items()
        if isinstance(value, int | float) and name != "step"
    }


def _import(module: str, setting: str, extra: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"the setting {setting}", extra) from error
