"""The API behind the page at /runs: the list of runs, one run's details, and its metrics.

It is read-only and tolerates damaged run folders. A name is looked up among the entries of the runs
folder, never joined to a path, and links are not followed, so that no name leads elsewhere.
"""

import contextlib
import datetime
import json
import time
from functools import lru_cache
from itertools import chain, repeat
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from groundup.files import file_signature
from groundup.planner.parameters import count_parameters
from groundup.runs.config import model_of
from groundup.runs.folder import RunFolder, list_checkpoints, loss_of_weights
from groundup.runs.metrics import Metrics
from groundup.runs.metrics_file import MetricsReader, read_newest
from groundup.serving.api_errors import ApiError, excerpt, invalid_request

_SUMMARY = ("step", "tokens", "loss", "tokens_per_second", "wall_seconds")

# A run that writes nothing for this long counts as stalled.
_STALLED_SECONDS = 300.0


class _Query(BaseModel):
    """The lines of metrics.jsonl that a page requests: those it does not have yet."""

    after: int = Field(default=0, ge=0)
    version: str | None = Field(default=None, max_length=100)
    limit: int = Field(default=100_000, ge=100, le=100_000)


def runs_routes(runs_folder: Path, served: str | None = None) -> list[Route]:
    """The routes for one runs folder; the page first shows the run named `served`."""
    runs_folder = Path(runs_folder).absolute()

    def find(request: Request) -> RunFolder:
        name = request.path_params["name"]
        for folder in find_runs(runs_folder):
            if folder.path.name == name:
                return folder
        raise ApiError(404, f"run {excerpt(name)} does not exist", code="run_not_found")

    # Not coroutines: Starlette calls them in threads, because they read files.
    def list_runs(request: Request) -> Response:
        runs = [summarize(folder) for folder in find_runs(runs_folder)]
        runs.sort(key=lambda run: run["started"] or run["updated"] or 0.0, reverse=True)
        found = {"runs": runs, "served": served, "folder": runs_folder.name, "now": time.time()}
        return _answer(found)

    def show_run(request: Request) -> Response:
        return _answer(describe(find(request)))

    def show_metrics(request: Request) -> Response:
        try:
            query = _Query.model_validate(dict(request.query_params))
        except ValidationError as error:
            raise invalid_request(error) from error
        return _answer(lines_after(_reader_of(find(request).metrics_file), query))

    return [
        Route("/api/runs", list_runs),
        Route("/api/runs/{name}", show_run),
        Route("/api/runs/{name}/metrics", show_metrics),
    ]


def find_runs(runs_folder: Path) -> list[RunFolder]:
    """Every run folder directly below `runs_folder`, sorted by name."""
    paths = list[Path]()
    with contextlib.suppress(OSError):
        # File names need not be valid text.
        paths = sorted(path for path in runs_folder.iterdir() if path.name.isprintable())
    folders = [RunFolder(path) for path in paths if path.is_dir() and not path.is_symlink()]
    return [folder for folder in folders if folder.has_begun()]


def summarize(folder: RunFolder) -> dict[str, Any]:
    """A row of the list; unknown values are None."""
    files = (folder.config_file, folder.metrics_file, folder.environment_file, folder.outcome_file)
    small = _read_small(folder.path, tuple(map(file_signature, files)))
    settings, newest, started, num_parameters, loss = small
    num_steps = settings.get("num_steps")
    num_steps = num_steps if isinstance(num_steps, int) else None
    step = None if (found := newest.last("step")) is None else int(found)
    state, message = status_of(folder, step, num_steps)
    return {
        "name": folder.path.name,
        "status": state,
        "message": message,
        **{name: newest.last(name) for name in _SUMMARY},
        "validation_loss": loss,
        "num_steps": num_steps,
        "started": started,
        "updated": last_change(folder),
        "num_parameters": num_parameters,
    }


def status_of(folder: RunFolder, step: int | None, num_steps: int | None) -> tuple[str, str]:
    """The status of a run and a sentence about it; a run without recent writes is stalled."""
    state, reason = folder.find_state(step, num_steps)
    if state == "finished":
        return "finished", "All steps are done."
    if state in ("failed", "diverged"):
        return "failed", (reason or "The run folder does not say why.")[:2_000]
    if state == "stopped":
        return "stopped", "Stopped and saved; continue it with --resume."
    if time.time() - (last_change(folder) or 0.0) <= _STALLED_SECONDS:
        return "running", "Training." if step else "Started; no metrics yet."
    if state != "killed":
        return "stalled", f"No output for {_STALLED_SECONDS / 60:.0f} minutes or more."
    return "failed", "No process holds this run: it was killed, or it runs on another machine."


def last_change(folder: RunFolder) -> float | None:
    """Time of the run's last write, in seconds since the epoch."""
    files = (folder.metrics_file, folder.log_file, folder.config_file, folder.environment_file)
    signatures = (file_signature(path) for path in files)
    return max((found[2] / 1e9 for found in signatures if found is not None), default=None)


def describe(folder: RunFolder) -> dict[str, Any]:
    """Everything except the curves."""
    settings = folder.read_settings()
    with _reader_of(folder.metrics_file).reading() as metrics:
        prompts = settings.get("samples.prompts")
        prompts = prompts if isinstance(prompts, list) else []
        samples = [
            {"step": sample.step, "prompt": str(prompt), "text": text}
            for sample in metrics.samples
            for text, prompt in zip(sample.texts, chain(prompts, repeat("")), strict=False)
        ]
        skipped = metrics.reasons.items()
        best = metrics.lowest("validation_loss")
        health = {
            "num_damaged_lines": metrics.num_damaged,
            "num_skipped": metrics.num_skipped,
            "skipped": [{"step": metrics.step_of(n), "reason": reason} for n, reason in skipped],
            "best": None if best is None else {"value": best[0], "step": best[1]},
            "memory_bytes": metrics.last("memory_bytes"),
            "checkpoints": list_checkpoints(folder.checkpoints),
        }
    return {
        **summarize(folder),
        "settings": settings,
        "environment": folder.read_environment(),
        "samples": samples,
        "health": health,
    }


def lines_after(reader: MetricsReader, query: _Query) -> dict[str, Any]:
    """The lines from number `after` on, thinned to about `limit`; if the file was rewritten since
    `version`, all lines."""
    after, version = query.after, query.version
    with reader.reading() as metrics:
        total = metrics.num_lines
        is_restarted = after > total or (after > 0 and version not in (None, reader.version))
        kept = thin(metrics, 0 if is_restarted else after, query.limit)
        lines = [_line(metrics, index) for index in kept]
        state = {"next": total, "version": reader.version, "restarted": is_restarted}
        return {"lines": lines, **state}


def thin(metrics: Metrics, first: int, limit: int) -> list[int]:
    """The line numbers from `first` on: all, or about `limit` at equal distances up to the last,
    plus all evaluations and skipped steps."""
    last = metrics.num_lines - 1
    step = max(1, -(-(last - first) // limit))
    always = {*metrics.reasons, *metrics.indices("validation_loss")} if step > 1 else ()
    return [n for n in range(first, last + 1) if (last - n) % step == 0 or n in always]


def as_json(value: Any) -> bytes:
    """Encode as strictly valid JSON: NaN and infinity become null."""
    text = json.dumps(value, default=str, skipkeys=True)
    if "NaN" in text or "Infinity" in text:
        text = json.dumps(json.loads(text, parse_constant=lambda name: None))
    return text.encode("ascii")


def _answer(value: dict[str, Any]) -> Response:
    return Response(as_json(value), media_type="application/json")


# Readers keep what they have parsed.
_reader_of = lru_cache(maxsize=32)(MetricsReader)


def _line(metrics: Metrics, index: int) -> dict[str, Any]:
    """The numbers of a line, without its sample texts."""
    line: dict[str, Any] = {
        name: value for name in metrics.columns if (value := metrics.at(name, index)) is not None
    }
    if index in metrics.reasons:
        line |= {"skipped": True, "reason": metrics.reasons[index]}
    return line


@lru_cache(maxsize=1024)
def _read_small(
    path: Path, signatures: tuple[tuple[int, int, int] | None, ...]
) -> tuple[dict[str, Any], Metrics, float | None, int | None, float | None]:
    """Settings, newest metrics, start in seconds since the epoch, number of parameters and
    validation loss; cached until the signature of a file changes."""
    folder = RunFolder(path)
    settings = folder.read_settings()
    # The recorded start, unlike the file's time, survives copying.
    started = None if signatures[2] is None else signatures[2][2] / 1e9
    with contextlib.suppress(ValueError, OverflowError):
        text = str(folder.read_environment().get("started"))
        started = datetime.datetime.fromisoformat(text).timestamp()
    num_parameters = None
    with contextlib.suppress(ArithmeticError):
        if model := model_of(settings):
            num_parameters = sum(count_parameters(model).values())
    newest = read_newest(folder.metrics_file)
    return settings, newest, started, num_parameters, loss_of_weights(folder, newest)
