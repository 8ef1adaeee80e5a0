"""Runs the experiments of docs/experiments on this machine and writes their reports.

    python tools/run_experiments.py --web web.txt --stories stories.txt

Every experiment goes on where it was when the same command is given again. What a person found in
an experiment lies in findings/<name>.txt beside the reports and is put there.
"""

import argparse
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

REPOSITORY = Path(__file__).resolve().parent.parent
CONFIGS = REPOSITORY / "configs"

Words = list[str]


class Text(NamedTuple):
    """A corpus, and how much of it is kept for validation."""

    name: str
    file: Path
    validation_fraction: float


class Experiment(NamedTuple):
    """Commands that find something out, and the one that writes the report."""

    name: str
    commands: list[Words]
    report: Words


def experiments(jobs: int, tokens: int) -> list[Experiment]:
    """All of them, in their order: later ones use what earlier ones made."""
    web = str(CONFIGS / "train" / "web.yaml")
    ten_minutes = str(CONFIGS / "train" / "ten_minutes.yaml")
    ablate = ["ablate", web, "--tokens", str(tokens)]
    rates = ["0.001", "0.003", "0.006"]
    return [
        _sweep("learning_rate", jobs),
        # The largest batch needs all of the memory.
        _sweep("batch_size", 1),
        _sweep("text", min(jobs, 2)),
        Experiment(
            "ablations",
            [[*ablate, "--learning-rates", *rates, "--seeds", "0", "1", "2", "--jobs", str(jobs)]],
            ["report", "sweeps/ablations"],
        ),
        _sweep("recipe", 1),
        Experiment(
            "ten_minutes",
            [["train", "--config", ten_minutes]],
            ["report", "runs/ten_minutes", "--title", "Ten minutes"],
        ),
    ]


def _sweep(name: str, jobs: int) -> Experiment:
    command = ["sweep", str(CONFIGS / "sweep" / f"{name}.yaml"), "--jobs", str(jobs)]
    return Experiment(name, [command], ["report", f"sweeps/{name}"])


def prepare(text: Text, folder: Path, run: Callable[[Words], None]) -> None:
    """A tokenizer and shards where the settings look for them, unless they are there."""
    place = folder / text.name
    tokenizer, shards = place / "tokenizer.json", place / "shards"
    place.mkdir(exist_ok=True)
    if not tokenizer.exists():
        run(
            ["tokenizer", "train", str(text.file), "--vocab-size", "16384", "--out", str(tokenizer)]
        )
    if not (shards / "index.json").exists():
        words = ["data", "prepare", str(text.file), "--tokenizer", str(tokenizer)]
        fraction = str(text.validation_fraction)
        run([*words, "--out", str(shards), "--validation-fraction", fraction])


def main() -> int:
    """Prepare the texts, run what was asked for, write the reports."""
    arguments = parse_arguments()
    folder: Path = arguments.folder.resolve()
    folder.mkdir(parents=True, exist_ok=True)
    reports = (arguments.reports or folder / "reports").resolve()
    environment = {**os.environ, "PYTHONPATH": _python_path()}

    def run(words: Words) -> None:
        print("groundup", *words, flush=True)
        began = time.monotonic()
        command = [sys.executable, "-m", "groundup", *words]
        subprocess.run(command, cwd=folder, env=environment, check=True)
        print(f"took {time.monotonic() - began:.0f} s", flush=True)

    texts = [
        Text("web", arguments.web.resolve(), 0.01),
        Text("stories", arguments.stories.resolve(), 0.05),
    ]
    for text in texts:
        prepare(text, folder, run)
    chosen = experiments(arguments.jobs, arguments.ablation_tokens)
    for experiment in chosen:
        if arguments.only and experiment.name not in arguments.only:
            continue
        if not arguments.reports_alone:
            for words in experiment.commands:
                run(words)
        finding = reports / "findings" / f"{experiment.name}.txt"
        told = ["--finding", f"@{finding}"] if finding.exists() else []
        run([*experiment.report, "--out", str(reports / f"{experiment.name}.html"), *told])
    return 0


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--web", type=Path, required=True, help="articles, as plain text")
    parser.add_argument("--stories", type=Path, required=True, help="little stories, as plain text")
    parser.add_argument("--folder", type=Path, default=Path("laboratory"), help="where to work")
    parser.add_argument(
        "--reports", type=Path, help="where reports go; reports in --folder if not given"
    )
    parser.add_argument("--only", nargs="+", help="names of experiments; all if not given")
    parser.add_argument("--jobs", type=int, default=1, help="runs at once, where sizes allow")
    parser.add_argument("--ablation-tokens", type=int, default=16_384_000)
    parser.add_argument("--reports-alone", action="store_true", help="run nothing, write reports")
    return parser.parse_args()


def _python_path() -> str:
    return os.pathsep.join(filter(None, [str(REPOSITORY / "src"), os.environ.get("PYTHONPATH")]))


if __name__ == "__main__":
    sys.exit(main())
