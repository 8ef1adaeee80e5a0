"""The models of a server: loaded on first use; at the maximum number of models, or out of memory,
the least recently used one is unloaded after its running requests have finished.
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
from groundup.runtime import free_memory_bytes, release_freed_memory
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
    """A model's loader and its run folder."""

    load: Callable[[], LanguageModel]
    folder: RunFolder | None = None


class Models:
    """The models by name. Used in the event loop, except `load_first`, which runs before it."""

    def __init__(self, sources: Mapping[str, Source], settings: ServerSettings) -> None:
        self._sources, self.settings = sources, settings
        self.metrics, self.workers = Metrics(), Workers(settings.work_seconds)
        self._created = int(time.time())
        # Cached model details for /v1/models.
        self._cards: dict[str, dict[str, Any]] = {}
        # In order of use, the least recently used first.
        self._loaded: dict[str, ServedModel] = {}
        # Being unloaded, while their running requests finish.
        self._draining: list[ServedModel] = []
        self._loading: dict[str, asyncio.Task[None]] = {}
        self._num_waiting: collections.Counter[str] = collections.Counter()
        self._load_lock = asyncio.Lock()
        self.is_stopping = False

    @property
    def names(self) -> list[str]:
        return list(self._sources)

    @property
    def schedulers(self) -> list[Scheduler]:
        return [model.scheduler for model in (*self._loaded.values(), *self._draining)]

    def load_first(self) -> LanguageModel:
        """Load the default model; its errors are not converted to an ApiError."""
        name = self.names[0]
        self._loaded[name] = self._load(name)
        return self._loaded[name].language_model

    async def start(self) -> None:
        for scheduler in self.schedulers:
            await asyncio.to_thread(scheduler.start, asyncio.get_running_loop())

    def stop(self) -> None:
        for scheduler in self.schedulers:
            scheduler.stop()
        self.workers.close()

    @contextlib.asynccontextmanager
    async def use(self, name: str | None) -> AsyncIterator[ServedModel]:
        """Yield the named model or the first one, loading it if necessary; it stays loaded until
        the context exits."""
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
                # A disconnecting client must not cancel loading: others may wait for it.
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
        """Return the /v1/models entry of a model, without loading it."""
        folder = self._sources[self._check(name)].folder
        if name not in self._cards and folder is not None:
            self._cards[name] = await self.workers.run("view", client, lambda: _read_card(folder))
        return {
            "id": name,
            "object": "model",
            "created": self._created,
            "owned_by": "groundup",
            "is_loaded": name in self._loaded,
            "can_rate": self.ratings_folder(name) is not None,
            "max_new_tokens": self.settings.max_new_tokens,
            **self._cards.get(name, {}),
        }

    def ratings_folder(self, name: str | None) -> Path | None:
        """The folder for ratings of a model's answers, or None if they are not saved."""
        folder = self._sources[self._check(self.names[0] if name is None else name)].folder
        settings, wanted = self.settings, self.settings.save_ratings
        is_public = (
            not is_loopback(settings.host) or settings.public_host or settings.trusted_proxies
        )
        is_wanted = wanted == "yes" or (wanted == "auto" and not is_public)
        return folder.path if folder is not None and is_wanted else None

    def _check(self, name: str) -> str:
        if name in self._sources:
            return name
        message = f"model {excerpt(name)} does not exist: use one of {', '.join(self.names)}"
        raise ApiError(404, message, param="model", code="model_not_found")

    async def _make_room_and_load(self, name: str) -> None:
        async with self._load_lock:
            while len(self._loaded) >= self.settings.max_models:
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
        """Unload the least recently used idle model, or wait for a busy one to finish."""
        # Keep models that have been loaded for requests still waiting to use them.
        while not (found := [name for name in self._loaded if not self._num_waiting[name]]):
            await asyncio.sleep(0.02)
        model = self._loaded.pop(min(found, key=lambda name: self._loaded[name].is_busy))
        self._draining.append(model)
        while model.is_busy:
            await asyncio.sleep(0.02)
        await asyncio.to_thread(model.scheduler.stop)
        self._draining.remove(model)
        del model
        release_freed_memory()
        if torch.cuda.is_available():
            torch.cuda.empty_cache()

    def _load(self, name: str) -> ServedModel:
        source = self._sources[name]
        loaded = source.load()
        _check_rows(loaded, self.settings.max_rows)
        parts = loaded.tokenizer, loaded.model.config.context_length, loaded.sampler
        self._cards[name] = _describe(*parts, loaded.step, source.folder)
        return ServedModel(name, loaded, self.settings, self.metrics, self.workers)


def _read_card(folder: RunFolder) -> dict[str, Any]:
    try:
        file, config = folder.generation_file, folder.read_config().model
        sampler = load_settings(Sampler, file if file.is_file() else None)
        tokenizer = Tokenizer.load(folder.tokenizer_file)
        return _describe(tokenizer, config.context_length, sampler, None, folder)
    except (GroundupError, OSError) as error:
        return {"error": str(error)}


def _describe(
    tokenizer: Tokenizer,
    context_length: int,
    sampler: Sampler,
    step: int | None,
    folder: RunFolder | None,
) -> dict[str, Any]:
    samples = None if folder is None else folder.read_config().samples
    # A run that did not sample has no prompts: the defaults do not fit it.
    prompts = samples.prompts if samples is not None and samples.every_steps else ()
    return {
        "context_length": context_length,
        "vocab_size": tokenizer.vocab_size,
        "has_chat_template": tokenizer.chat_template is not None,
        "generation": sampler.model_dump(),
        "step": step,
        "prompts": list(prompts),
    }


class _FullError(ConfigError):
    """Not enough memory next to the other loaded models."""


def _check_rows(language_model: LanguageModel, max_rows: int) -> None:
    """Raise _FullError if the KV cache of `max_rows` rows exceeds the free memory."""
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
