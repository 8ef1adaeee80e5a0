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
    trackers: list[Tracker] = []
    if config.logging.tensorboard:
        trackers.append(_TensorBoard(folder))
    if config.logging.wandb:
        trackers.append(_HostedRun("wandb", config, id=config.name, dir=str(folder)))
    if config.logging.trackio:
        trackers.append(_HostedRun("trackio", config))
    return [_Guarded(tracker) for tracker in trackers]


class _TensorBoard:
    """Event files in the run folder: `tensorboard --logdir runs` shows them."""

    name = "tensorboard"

    def __init__(self, folder: Path) -> None:
        module = _import("torch.utils.tensorboard", self.name)
        self._writer = module.SummaryWriter(str(folder / "tensorboard"))

    def write(self, record: dict[str, Any]) -> None:
        for name, value in scalars(record).items():
            self._writer.add_scalar(name, value, record["step"])
        for number, text in enumerate(record.get("samples", ())):
            self._writer.add_text(f"sample {number}", text, record["step"])
        self._writer.flush()

    def close(self) -> None:
        self._writer.close()


class _HostedRun:
    """A run of the same name at Weights & Biases or trackio, which have one interface; a resume
    goes on with it."""

    def __init__(self, name: str, config: RunConfig, **options: Any) -> None:
        self.name = name
        self._run = _import(name, name).init(
            project=config.logging.project,
            name=config.name,
            config=config.model_dump(mode="json"),
            resume="allow",
            **options,
        )

    def write(self, record: dict[str, Any]) -> None:
        self._run.log(scalars(record), step=record["step"])

    def close(self) -> None:
        self._run.finish()


class _Guarded:
    """A tracker that fails is left out from then on: the run is worth more than its curves."""

    def __init__(self, tracker: Any) -> None:
        self._tracker = tracker

    def write(self, record: dict[str, Any]) -> None:
        self._try(lambda tracker: tracker.write(record))

    def close(self) -> None:
        self._try(lambda tracker: tracker.close())

    def _try(self, action: Callable[[Any], None]) -> None:
        if self._tracker is None:
            return
        try:
            action(self._tracker)
        except Exception as error:
            _log.warning("%s failed and gets no more records: %s", self._tracker.name, error)
            self._tracker = None


def scalars(record: dict[str, Any]) -> dict[str, float]:
    """The numbers of a record but its step, which trackers take apart."""
    return {
        name: value
        for name, value in record.items()
        if isinstance(value, int | float) and name != "step"
    }


def _import(module: str, name: str) -> Any:
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise MissingExtraError(f"the setting logging.{name}", name) from error
