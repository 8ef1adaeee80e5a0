"""What else happens while a run trains: a progress bar, samples, TensorBoard, Weights & Biases or
trackio. None is required, and packages are imported only when a setting asks for them."""

import importlib
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

from groundup.errors import MissingExtraError
from groundup.model import TransformerLM
from groundup.runs.config import RunConfig
from groundup.tokenizer import Tokenizer

_log = logging.getLogger(__name__)


class Callback:
    """Is called while a run trains; override what you need."""

    def after_step(self, step: int, progress: float) -> None:
        """On every rank, when all that follows a step is done; `progress` goes from 0 to 1."""

    def sample(self, model: TransformerLM, tokenizer: Tokenizer, prompt: str) -> str | None:
        """A continuation of the prompt; None leaves it to others. It must not change the model."""

    def record(self, record: dict[str, Any]) -> None:
        """On the first rank, a line of metrics.jsonl."""

    def close(self) -> None:
        """At the end of the run, whatever it is."""


class AfterStep(Callback):
    """Calls a function after every step, with the step and the progress from 0 to 1."""

    def __init__(self, call: Callable[[int, float], object]) -> None:
        self._call = call

    def after_step(self, step: int, progress: float) -> None:
        self._call(step, progress)


class Tracker(Callback):
    """Takes records as they come.

    One that fails is left out from then on: the run is worth more than its curves.
    """

    def __init__(
        self, name: str, write: Callable[[dict[str, Any]], object], close: Callable[[], object]
    ) -> None:
        self._name = name
        self._write = write
        self._close = close
        self._has_failed = False

    def record(self, record: dict[str, Any]) -> None:
        self._try(self._write, record)

    def close(self) -> None:
        self._try(self._close)

    def _try(self, action: Callable[..., object], *arguments: Any) -> None:
        if self._has_failed:
            return
        try:
            action(*arguments)
        except Exception as error:
            _log.warning("%s failed and gets no more records: %s", self._name, error)
            self._has_failed = True


def open_trackers(config: RunConfig, folder: Path) -> list[Tracker]:
    """The trackers that the settings ask for, in a fixed order."""
    trackers = []
    if config.logging.tensorboard:
        trackers.append(_open_tensorboard(folder / "tensorboard"))
    if config.logging.wandb:
        trackers.append(_open_hosted("wandb", config, id=config.name, dir=str(folder)))
    if config.logging.trackio:
        trackers.append(_open_hosted("trackio", config))
    return trackers


def _open_tensorboard(folder: Path) -> Tracker:
    """Event files in the run folder: `tensorboard --logdir runs` shows them."""
    writer = _import("torch.utils.tensorboard", "tensorboard").SummaryWriter(str(folder))

    def write(record: dict[str, Any]) -> None:
        for name, value in _scalars(record).items():
            writer.add_scalar(name, value, record["step"])
        for number, text in enumerate(record.get("samples", ())):
            writer.add_text(f"sample {number}", text, record["step"])
        writer.flush()

    return Tracker("tensorboard", write, writer.close)


def _open_hosted(name: str, config: RunConfig, **options: Any) -> Tracker:
    """A run of the same name at Weights & Biases or trackio, which have one interface; a resume
    continues it."""
    run = _import(name, name).init(
        project=config.logging.project,
        name=config.name,
        config=config.model_dump(mode="json"),
        resume="allow",
        **options,
    )
    return Tracker(name, lambda record: run.log(_scalars(record), step=record["step"]), run.finish)


def _scalars(record: dict[str, Any]) -> dict[str, float]:
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
