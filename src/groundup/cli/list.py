"""`groundup list`: the runs of a folder, and what each of them is good for."""

import json
import time
from pathlib import Path
from typing import Any

from groundup.cli.arguments import Positional
from groundup.cli.shared import RUNS_FOLDER
from groundup.cli.terminal import print_table
from groundup.config import Settings
from groundup.errors import ConfigError, GroundupError


class Arguments(Settings):
    """List runs, the latest first: age, size, best validation loss, and what they can do."""

    folder: Positional[Path] = RUNS_FOLDER
    """The folder of runs."""

    json_: bool = False
    """Print one JSON list instead of a table."""


def run(arguments: Arguments) -> None:
    """Read what small files say; no model is loaded."""
    from groundup.planner.quantities import show_bytes, show_count
    from groundup.runs.folder import RunFolder
    from groundup.runtime import format_duration

    folder = arguments.folder
    found = [one for one in [folder, *folder.glob("*/")] if RunFolder(one).has_run()]
    if not found:
        raise ConfigError(
            f"{folder} holds no run: groundup new FOLDER makes one, or name the folder of runs"
        )
    runs = sorted(map(_describe, found), key=lambda one: one["age_seconds"])
    if arguments.json_:
        print(json.dumps(runs, ensure_ascii=False))
        return
    rows = []
    for one in runs:
        loss, bits = one["validation_loss"], one["bits_per_byte"]
        rows.append(
            [
                one["run"],
                format_duration(one["age_seconds"]),
                "" if one["parameters"] is None else show_count(one["parameters"]),
                show_bytes(one["bytes"]),
                f"{one['step']:,}",
                "" if loss is None else f"{loss:.4f}",
                "" if bits is None else f"{bits:.4f}",
                one["state"],
                ", ".join(one["can"]),
            ]
        )
    names = ("run", "age", "parameters", "size", "step", "loss", "bits per byte", "state", "can")
    print_table(str(folder), names, rows)


def _describe(path: Path) -> dict[str, Any]:
    from groundup.experiments.run_result import read_run
    from groundup.runs.folder import RunFolder, list_checkpoints
    from groundup.tokenizer import Tokenizer

    result, folder = read_run(path), RunFolder(path)
    metrics, checkpoints = result.metrics, list_checkpoints(folder.checkpoints)
    best = metrics.lowest("validation_loss")
    files = [file.stat() for file in path.rglob("*") if file.is_file()]
    try:
        knows_turns = Tokenizer.load(folder.tokenizer_file).chat_template is not None
    except (GroundupError, OSError):
        knows_turns = False
    state = result.outcome.state if metrics.num_lines else "imported"
    state = "empty" if not checkpoints else state
    # A run that goes on has read its own text, of which it knows where it lies.
    is_trained = isinstance(result.environment.get("data"), dict)
    can = {
        "generate": bool(checkpoints),
        "chat": bool(checkpoints) and knows_turns,
        "more": bool(checkpoints) and is_trained,
        "resume": state == "unfinished" or (folder.read_outcome() is None and is_trained),
    }
    return {
        "run": path.name,
        "age_seconds": max(0.0, time.time() - max(file.st_mtime for file in files)),
        "parameters": result.cost["num_parameters"],
        "bytes": sum(file.st_size for file in files),
        "step": checkpoints[0]["step"] if checkpoints else 0,
        "validation_loss": None if best is None else best[0],
        "bits_per_byte": metrics.at_lowest("bits_per_byte", "validation_loss"),
        "state": state,
        "can": [name for name, is_so in can.items() if is_so and state != "running"],
    }
