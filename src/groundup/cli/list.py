"""`groundup list`: the runs in a folder, and what can be done with each."""

import json
import time
from pathlib import Path
from typing import Any

from groundup.cli.arguments import Positional
from groundup.cli.shared import RUNS_FOLDER
from groundup.cli.terminal import print_records
from groundup.config import Settings
from groundup.errors import ConfigError, GroundupError


class Arguments(Settings):
    """List runs, latest first: age, size, validation loss of the weights, and what can be done."""

    folder: Positional[Path] = RUNS_FOLDER
    """The folder of runs."""

    json_: bool = False
    """Print one JSON list instead of a table."""


def run(arguments: Arguments) -> None:
    from groundup.runs.folder import RunFolder

    folder = arguments.folder
    found = [one for one in [folder, *folder.glob("*/")] if RunFolder(one).has_run()]
    if not found:
        raise ConfigError(
            f"{folder} contains no runs: train one with groundup new FOLDER, or give another folder"
        )
    runs = sorted(map(_describe, found), key=lambda one: one["age_seconds"])
    if arguments.json_:
        print(json.dumps(runs, ensure_ascii=False))
        return
    print_records(str(folder), runs)


def _describe(path: Path) -> dict[str, Any]:
    from groundup.experiments.run_result import read_run
    from groundup.runs.folder import RunFolder, list_checkpoints, loss_of_weights
    from groundup.tokenizer import Tokenizer

    result, folder = read_run(path), RunFolder(path)
    metrics, checkpoints = result.metrics, list_checkpoints(folder.checkpoints)
    loss, losses = loss_of_weights(folder, metrics), list(metrics.column("validation_loss"))
    line = losses.index(loss) if loss is not None and loss in losses else None
    files = [file.stat() for file in path.rglob("*") if file.is_file()]
    try:
        knows_turns = Tokenizer.load(folder.tokenizer_file).chat_template is not None
    except (GroundupError, OSError):
        knows_turns = False
    state = "imported" if checkpoints and not metrics.num_lines else result.outcome.state
    is_trained = isinstance(result.environment.get("data"), dict)
    can = {
        "generate": bool(checkpoints),
        "chat": bool(checkpoints) and knows_turns,
        "more": bool(checkpoints) and is_trained,
        "resume": is_trained and (state == "unfinished" or folder.read_outcome() is None),
    }
    return {
        "run": path.name,
        "age_seconds": max(0.0, time.time() - max(file.st_mtime for file in files)),
        "parameters": result.cost["num_parameters"],
        "bytes": sum(file.st_size for file in files),
        "step": checkpoints[0]["step"] if checkpoints else 0,
        "validation_loss": loss,
        "bits_per_byte": metrics.at("bits_per_byte", line),
        "state": state,
        "can": [name for name, is_so in can.items() if is_so and state != "running"],
    }
