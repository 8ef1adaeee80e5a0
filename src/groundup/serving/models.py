"""The models of a server: loaded when they are first asked for, the least recently used unloaded
when there are too many or their memory is needed. What is running in a model is finished first.
"""

import asyncio
import collections
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import torch

from groundup.config import load_settings
from groundup.errors import ConfigError, GroundupError
from groundup.generation import LanguageModel
from groundup.generation.request import Sampler
from groundup.planner.quantities import show_bytes
from groundup.runs.folder import RunFolder
from groundup.runtime import free_memory_bytes, give_back_freed_memory
from groundup.serving.api_errors import ApiError, excerpt
from groundup.serving.completions import ServedModel
from groundup.serving.guards import is_loopback
from groundup.serving.metrics import Metrics
from groundup.serving.scheduler import Scheduler
from groundup.serving.settings import ServerSettings
from groundup.serving.workers import Workers
from groundup.tokenizer import Tokenizer

_log = logging.getLogger(__name__)


class Source(NamedTuple):
    """What gives a model, and the run that it is of."""

    load: Callable[[], LanguageModel]
    folder: RunFolder | None = None


class Models:
    """The models by their names. Used in the event loop, `load_first` before there is one."""

    def __init__(
        self,
        sources: Mapping[str, Source],
        settings: ServerSettings,
        metrics: Metrics,
        workers: Workers,
    ) -> None:
        self._sources, self._settings, self._metrics = sources, settings, metrics
        self._workers = workers
        self._created = int(time.time())
        # What /v1/models says of each, as far as somebody has asked.
        self._cards: dict[str, dict[str, Any]] = {}
        # The least recently used first; and those that end what is running in them.
        self._loaded: dict[str, ServedModel] = {}
        self._leaving: list[ServedModel] = []
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._num_waiting: collections.Counter[str] = collections.Counter()
        self._turn = asyncio.Lock()
        self.is_stopping = False

    @property
    def names(self) -> list[str]:
        return list(self._sources)

    @property
    def schedulers(self) -> list[Scheduler]:
        return [model.scheduler for model in (*self._loaded.values(), *self._leaving)]

    def load_first(self) -> LanguageModel:
        """Load the model of requests that name none; errors are raised as they are."""
        name = self.names[0]
        self._loaded[name] = self._load(name)
        return self._loaded[name].language_model

    async def start(self) -> None:
        for scheduler in self.schedulers:
            await asyncio.to_thread(scheduler.start, asyncio.get_running_loop())

    def stop(self) -> None:
        for scheduler in self.schedulers:
            scheduler.stop()

    @contextlib.asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[ServedModel]:
        """The model of that name, or the first; loaded if it is not, and kept until the end."""
        name = self._check(self.names[0] if name is None else name)
        self._num_waiting[name] += 1
        try:
            while name not in self._loaded:
                if self.is_stopping:
                    raise ApiError(503, "the server is stopping", code="unavailable")
                task = self._loading.get(name)
                if task is None:
                    task = self._loading[name] = asyncio.create_task(self._make_room_and_load(name))
                    task.add_done_callback(lambda _: self._loading.pop(name))
                # Others may wait for it too, so that a client that leaves does not end it.
                await asyncio.shield(task)
        finally:
            self._num_waiting[name] -= 1
        model = self._loaded[name] = self._loaded.pop(name)
        model.num_users += 1
        try:
            yield model
        finally:
            model.num_users -= 1

    async def card(self, name: str, client: str) -> dict[str, Any]:
        """What /v1/models says of a model; it need not be loaded for that."""
        folder = self._sources[self._check(name)].folder
        if name not in self._cards and folder is not None:
            self._cards[name] = await self._workers.run("view", client, lambda: _read_card(folder))
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "groundup",
            "is_loaded": name in self._loaded,
            "can_rate": self.ratings_folder(name) is not None,
            "max_new_tokens": self._settings.max_new_tokens,
            **self._cards.get(name, {}),
        }

    def ratings_folder(self, name: str | None) -> Path | None:
        """Where ratings of a model's answers are saved, if they are."""
        folder = self._sources[self._check(self.names[0] if name is None else name)].folder
        wanted = self._settings.save_ratings
        is_wanted = wanted == "yes" or (wanted == "auto" and is_loopback(self._settings.host))
        return folder.path if folder is not None and is_wanted else None

    def _check(self, name: str) -> str:
        if name in self._sources:
            return name
        message = f"model {excerpt(name)} does not exist here; served are {', '.join(self.names)}"
        raise ApiError(404, message, param="model", code="model_not_found")

    async def _make_room_and_load(self, name: str) -> None:
        async with self._turn:
            while len(self._loaded) >= self._settings.max_models:
                await self._unload_one()
            while True:
                try:
                    model = await asyncio.to_thread(self._load, name)
                    await asyncio.to_thread(model.scheduler.start, asyncio.get_running_loop())
                    break
                except (GroundupError, MemoryError, torch.OutOfMemoryError) as error:
                    is_full = not isinstance(error, GroundupError) or isinstance(error, _FullError)
                    if not (is_full and self._loaded):
                        _log.warning("model %s cannot be loaded: %s", name, error)
                        message = f"model {name} cannot be loaded: {error}"
                        raise ApiError(503, message, code="model_not_loaded") from error
                await self._unload_one()
            if self.is_stopping:
                model.scheduler.refuse_new()
            self._loaded[name] = model

    async def _unload_one(self) -> None:
        """The one that nobody has used for longest, or whose running texts are waited for."""
        # Whoever waited for a model that is loaded now takes it at once.
        while not (found := [name for name in self._loaded if not self._num_waiting[name]]):
            await asyncio.sleep(0.02)
        model = self._loaded.pop(min(found, key=lambda name: self._loaded[name].is_busy))
        self._leaving.append(model)
        while model.is_busy:
            await asyncio.sleep(0.02)
        await asyncio.to_thread(model.scheduler.stop)
        self._leaving.remove(model)
        del model
        give_back_freed_memory()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _load(self, name: str) -> ServedModel:
        source = self._sources[name]
        loaded = source.load()
        _check_rows(loaded, self._settings.max_rows)
        card = _describe(loaded.tokenizer, loaded.model.config.context_length, loaded.sampler)
        self._cards[name] = card | {"step": loaded.step, "prompts": _prompts(source.folder)}
        return ServedModel(name, loaded, self._settings, self._metrics, self._workers)


def _read_card(folder: RunFolder) -> dict[str, Any]:
    try:
        file, config = folder.generation_file, folder.read_config().model
        sampler = load_settings(Sampler, file if file.exists() else None)
        return _describe(Tokenizer.load(folder.tokenizer_file), config.context_length, sampler) | {
            "step": None,
            "prompts": _prompts(folder),
        }
    except (GroundupError, OSError) as error:
        return {"error": str(error)}


def _describe(tokenizer: Tokenizer, context_length: int, sampler: Sampler) -> dict[str, Any]:
    return {
        "context_length": context_length,
        "vocab_size": tokenizer.vocab_size,
        "has_chat_template": tokenizer.chat_template is not None,
        "generation": sampler.model_dump(),
    }


def _prompts(folder: RunFolder | None) -> list[str]:
    """What to offer in the playground. Default prompts say nothing about the model."""
    if folder is None or not (samples := folder.read_config().samples).every_steps:
        return []
    return list(samples.prompts)


class _FullError(ConfigError):
    """There is not enough memory beside the other models."""


def _check_rows(language_model: LanguageModel, max_rows: int) -> None:
    """Refuse more rows than there is free memory for their keys and values."""
    config, weight = language_model.model.config, language_model.model.output_weight
    row_bytes = 2 * config.num_layers * config.key_value_heads * config.d_head
    row_bytes *= config.context_length * weight.element_size()
    free = torch.cuda.mem_get_info(weight.device)[0] if weight.is_cuda else free_memory_bytes()
    if max_rows * row_bytes > free:
        raise _FullError(
            f"{max_rows} rows with a context of {config.context_length} take "
            f"{show_bytes(max_rows * row_bytes)}, and {show_bytes(free)} are free: set --max-rows "
            f"to about {max(1, free // (2 * row_bytes))}"
        )
