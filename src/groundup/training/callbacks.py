"""What else happens while a run trains: a progress bar, samples, Weights & Biases."""

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
        """A continuation of the prompt, of the first callback that has this; it must not change the
        model."""

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


class WeightsAndBiases(Callback):
    """Sends the numbers of records to a run of the same name there; a resume continues it.

    Once that fails no more are sent: the run is worth more than its curves.
    """

    def __init__(self, config: RunConfig, folder: Path) -> None:
        try:
            wandb: Any = importlib.import_module("wandb")
        except ImportError as error:
            raise MissingExtraError("the setting logging.wandb", "wandb") from error
        place = {"project": config.logging.project, "id": config.name, "dir": str(folder)}
        settings = config.model_dump(mode="json")
        self._run = wandb.init(name=config.name, config=settings, resume="allow", **place)
        self._has_failed = False

    def record(self, record: dict[str, Any]) -> None:
        numbers = {key: one for key, one in record.items() if isinstance(one, int | float)}
        step = numbers.pop("step")
        self._try(lambda: self._run.log(numbers, step=step))

    def close(self) -> None:
        self._try(self._run.finish)

    def _try(self, action: Callable[[], object]) -> None:
        if self._has_failed:
            return
        try:
            action()
        except Exception as error:
            _log.warning("wandb failed and gets no more records: %s", error)
            self._has_failed = True
