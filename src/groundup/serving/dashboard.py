"""The runs API behind the page at /runs: a list, the details of one run, and its metrics as they
come.

It only reads, and stays calm whatever a run folder holds. Which folders a client may ask for and
their states are `run_reading`.
"""

import contextlib
import datetime
import time
from array import array
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain, repeat
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy
from fastapi import APIRouter, Query, Response

from groundup.planner.parameters import count_parameters
from groundup.runs.checkpoint_list import list_checkpoints
from groundup.runs.config import model_of
from groundup.runs.folder import RunFolder
from groundup.runs.metrics import Metrics
from groundup.runs.metrics_file import MetricsReader, Newest, read_newest
from groundup.runs.plain_files import file_signature
from groundup.serving.api_errors import ApiError
from groundup.serving.run_reading import (
    as_json,
    find_run,
    find_runs,
    last_change,
    status_of,
)

_POSITIONS = frozenset({"step", "tokens", "wall_seconds"})
_INTEGERS = frozenset({"step", "tokens", "memory_bytes"})


def router_for_runs(runs_folder: Path, served: str | None = None) -> APIRouter:
    """GET /api/runs, /api/runs/{name} and /api/runs/{name}/metrics?after=N over one folder.

    runs_folder: where the run folders are.
    served: the name of the run that the server answers with, which the page shows first.
    """
    runs_folder = Path(runs_folder).absolute()
    router = APIRouter(prefix="/api/runs", tags=["runs"])

    def find(name: str) -> RunFolder:
        folder = find_run(runs_folder, name)
        if folder is None:
            raise _no_run(name)
        return folder

    @router.get("", summary="Every run folder, the last begun first")
    def list_runs() -> Response:
        runs = [summarize(folder) for folder in find_runs(runs_folder)]
        runs.sort(key=lambda run: run["started"] or run["updated"] or 0.0, reverse=True)
        folder, now = runs_folder.name, time.time()
        return _answer({"runs": runs, "served": served, "folder": folder, "now": now})

    @router.get("/{name}", summary="Settings, environment, samples and health of a run")
    def show_run(name: str) -> Response:
        return _answer(describe(find(name)))

    @router.get("/{name}/metrics", summary="Lines of metrics.jsonl from number `after` on")
    def show_metrics(
        name: str,
        after: Annotated[int, Query(ge=0)] = 0,
        version: Annotated[str | None, Query(max_length=100)] = None,
        limit: Annotated[int | None, Query(ge=100, le=100_000)] = None,
    ) -> Response:
        return _answer(lines_after(_reader_of(find(name).metrics_file), after, version, limit))

    @router.get("/{anything:path}", include_in_schema=False)
    def refuse(anything: str) -> Response:
        # Without this a name with a slash behind it would be sent on to the name without one.
        raise _no_run(anything)

    return router


def summarize(folder: RunFolder) -> dict[str, Any]:
    """A row of the list; whatever is not known is None."""
    settings, newest, started, num_parameters = _read_small(folder)
    num_steps = settings.get("num_steps")
    num_steps = num_steps if isinstance(num_steps, int) else None
    step = newest.values.get("step")
    status = status_of(folder, None if step is None else int(step), num_steps, newest.longest_gap)
    names = ("step", "tokens", "loss", "validation_loss", "tokens_per_second", "wall_seconds")
    return {
        "name": folder.path.name,
        "status": status.state,
        "message": status.message,
        **{name: newest.values.get(name) for name in names},
        "num_steps": num_steps,
        "started": started,
        "updated": last_change(folder),
        "num_parameters": num_parameters,
    }


def describe(folder: RunFolder) -> dict[str, Any]:
    """All but the curves."""
    settings = _read_small(folder).settings
    with _reader_of(folder.metrics_file).reading() as metrics:
        samples = _samples(metrics, settings.get("samples.prompts"))
        health = _health(metrics)
    return {
        **summarize(folder),
        "settings": settings,
        "environment": folder.read_environment(),
        "samples": samples,
        "health": {**health, "checkpoints": list_checkpoints(folder.checkpoints)},
        "now": time.time(),
    }


def lines_after(
    reader: MetricsReader, after: int, version: str | None = None, limit: int | None = None
) -> dict[str, Any]:
    """The lines from number `after` on, thinned to about `limit`, as the page asks for them.

    If the version is no longer that of the file, or it has fewer lines than `after`, the answer
    begins anew.

    reader: of the run's metrics.jsonl.
    after: how many lines the page has.
    version: of the file that it has them from.
    limit: about how many lines to send; all if None.
    """
    with reader.reading() as metrics:
        total = metrics.num_lines
        is_restarted = after > total or (after > 0 and version not in (None, reader.version))
        kept = thin(metrics.columns, 0 if is_restarted else after, total, limit, metrics.reasons)
        return {
            "lines": [_line(metrics, index) for index in kept],
            "next": total,
            "version": reader.version,
            "restarted": is_restarted,
        }


def thin(
    columns: Mapping[str, "array[float]"],
    first: int,
    stop: int,
    limit: int | None,
    always: Iterable[int] = (),
) -> list[int]:
    """The line numbers to keep of `first` to `stop`: all, or about `limit` with the extremes.

    Each metric has its lines cut into spans of equal count, and the least and the greatest of
    every span are kept, so that a spike of one line is still seen. Half of the limit is the
    loss's, which is what people look at. The lines of `always` are kept as well.

    columns: each metric's values by line number, NaN where a line has none.
    first, stop: the lines to choose from.
    limit: about how many to keep; all if None.
    always: line numbers to keep in any case.
    """
    if limit is None or stop - first <= limit:
        return list(range(first, stop))
    metrics = [name for name in columns if name not in _POSITIONS]
    kept = {first, stop - 1, *(index for index in always if first <= index < stop)}
    for name in metrics:
        num_lines = limit / 2 if name == "loss" else limit / 2 / max(1, len(metrics) - 1)
        values = numpy.array(columns[name][first:stop])
        kept.update(first + index for index in _extremes(values, max(1, int(num_lines / 2))))
    return sorted(kept)


def _extremes(
    values: "numpy.ndarray[tuple[int], numpy.dtype[numpy.float64]]", num_spans: int
) -> list[int]:
    present = numpy.flatnonzero(numpy.isfinite(values))
    if len(present) <= 2 * num_spans:
        return [int(index) for index in present]
    kept = [int(present[0]), int(present[-1])]
    for span in numpy.array_split(present, num_spans):
        kept.append(int(span[values[span].argmin()]))
        kept.append(int(span[values[span].argmax()]))
    return kept


@lru_cache(maxsize=32)
def _reader_of(path: Path) -> MetricsReader:
    """The reader of a run looked at lately; it remembers what it has parsed."""
    return MetricsReader(path, follow_links=False)


def _answer(value: dict[str, Any]) -> Response:
    headers = {"Cache-Control": "no-store"}
    return Response(as_json(value), headers=headers, media_type="application/json")


def _no_run(name: str) -> ApiError:
    message = f"Run {name[:200]!r} does not exist here."
    return ApiError(404, message, param="name", code="run_not_found")


def _health(metrics: Metrics) -> dict[str, Any]:
    return {
        "num_lines": metrics.num_lines,
        "num_damaged_lines": metrics.num_damaged,
        "num_skipped": metrics.num_skipped,
        "skipped": [
            {"step": metrics.step_of(index), "reason": reason}
            for index, reason in metrics.reasons.items()
        ],
        "num_spikes": metrics.spikes.num_spikes,
        "spikes": [vars(spike) for spike in metrics.spikes.spikes],
        "best": {name: _best(metrics, name) for name in ("loss", "validation_loss")},
        "memory_bytes": metrics.last("memory_bytes"),
    }


def _line(metrics: Metrics, index: int) -> dict[str, Any]:
    """The numbers of a line as they were written, without its texts."""
    line: dict[str, Any] = {}
    for name in metrics.columns:
        if (value := metrics.at(name, index)) is not None:
            line[name] = int(value) if name in _INTEGERS else value
    if index in metrics.reasons:
        line |= {"skipped": True, "reason": metrics.reasons[index]}
    return line


def _best(metrics: Metrics, name: str) -> dict[str, float | int] | None:
    lowest = metrics.lowest(name)
    return None if lowest is None else {"value": lowest[0], "step": lowest[1]}


def _samples(metrics: Metrics, prompts: Any) -> list[dict[str, Any]]:
    known = prompts if isinstance(prompts, list) else []
    return [
        {"step": sample.step, "prompt": str(prompt), "text": text}
        for sample in metrics.samples
        for text, prompt in zip(sample.texts, chain(known, repeat("")), strict=False)
    ]


class _Small(NamedTuple):
    """What a run's small files say, and its newest metrics."""

    settings: dict[str, Any]
    newest: Newest
    started: float | None
    num_parameters: int | None


def _read_small(folder: RunFolder) -> _Small:
    files = (folder.config_file, folder.metrics_file, folder.environment_file)
    return _read_once(folder.path, tuple(map(file_signature, files)))


@lru_cache(maxsize=1024)
def _read_once(path: Path, signatures: tuple[tuple[int, int, int] | None, ...]) -> _Small:
    """Of files with these signatures, read once."""
    folder = RunFolder(path, follow_links=False)
    settings = folder.read_settings()
    # A copied folder still says when the run began.
    started = None if signatures[2] is None else signatures[2][2] / 1e9
    with contextlib.suppress(ValueError, OverflowError):
        text = str(folder.read_environment().get("started"))
        started = datetime.datetime.fromisoformat(text).timestamp()
    model, num_parameters = model_of(settings), None
    with contextlib.suppress(ArithmeticError):
        num_parameters = None if model is None else sum(count_parameters(model).values())
    newest = read_newest(folder.metrics_file, follow_links=False)
    return _Small(settings, newest, started, num_parameters)
