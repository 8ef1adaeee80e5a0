"""The experiments that come with groundup, made small enough for a CPU and really run.

What differs from `docs/experiments/` is the size of the model, the text and the number of points;
the files, the commands and the reports are the same.
"""

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from groundup.cli.main import main
from groundup.config import load_settings, save_yaml
from groundup.data.prepare import prepare
from groundup.data.samples import write_sample_corpus
from groundup.experiments.ablation import ablation_spec
from groundup.experiments.run_result import RunResult, read_run
from groundup.experiments.spec import SweepConfig, load_sweep
from groundup.experiments.sweep import plan_trials
from groundup.files import read_json_lines
from groundup.runs.config import RunConfig
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.training import train_tokenizer

CONFIGS = Path(__file__).resolve().parents[2] / "configs"
SMALL: dict[str, Any] = {
    "device": "cpu",
    "num_threads": 1,
    "batch_size": 4,
    "model.vocab_size": 300,
    "model.context_length": 16,
    "model.d_model": 16,
    "model.num_layers": 1,
    "model.num_heads": 2,
    "model.d_ff": 48,
    "evaluation.num_windows": 8,
}
RECORDS = {
    path.stem: Path("sweeps", path.stem, "trials.jsonl")
    for path in (CONFIGS / "sweep").glob("*.yaml")
}


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in, with `stories` and `web` where the settings look for them."""
    folder = tmp_path_factory.mktemp("laboratory")
    for seed, name in enumerate(("stories", "web")):
        (folder / name).mkdir()
        corpus, tokenizer_file = folder / f"{name}.txt", folder / name / "tokenizer.json"
        write_sample_corpus(corpus, megabytes=0.06, seed=seed)
        tokenizer, _ = train_tokenizer([corpus.read_bytes()], 300, ["<|endoftext|>"])
        tokenizer.save(tokenizer_file)
        shards = folder / name / "shards"
        prepare([corpus], Tokenizer.load(tokenizer_file), shards, validation_fraction=0.1)
    before = Path.cwd()
    with pytest.MonkeyPatch.context() as patch:
        # For processes that are started from the new folder.
        patch.setenv("PYTHONPATH", str(CONFIGS.parent / "src"))
        patch.setenv("OMP_NUM_THREADS", "1")
        os.chdir(folder)
        yield folder
        os.chdir(before)


def shrink(name: str, **changes: Any) -> str:
    """A sweep that comes with groundup, with a tiny model, and the first and last of its values."""
    sweep = yaml.safe_load((CONFIGS / "sweep" / f"{name}.yaml").read_text("utf-8"))
    sweep["base"] = str((CONFIGS / "sweep" / sweep["base"]).resolve())
    sweep["settings"] = {**sweep.get("settings", {}), **SMALL}
    grid = sweep.get("grid", {})
    sweep["grid"] = {setting: [values[0], values[-1]] for setting, values in grid.items()}
    file = Path(f"{name}.yaml")
    file.write_text(yaml.safe_dump({**sweep, "seeds": [0], **changes}), "utf-8")
    return str(file)


def run(*words: str) -> None:
    assert main(words) == 0


def report(folder: str) -> str:
    run("report", folder, "--out", f"{folder}.html")
    return Path(f"{folder}.html").read_text("utf-8")


def test_learning_rates_are_swept_beyond_the_edge(laboratory: Path) -> None:
    # A model so small bears far more than a real one.
    grid = {"optimizer.learning_rate": [0.01, 300.0]}
    variants = {"unclipped": {"clip_norm": None}}
    sweep = shrink("learning_rate", tokens=3_200, grid=grid, variants=variants)
    run("sweep", sweep, "--jobs", "2")
    records = {record["trial"]: record for record in read_json_lines(RECORDS["learning_rate"])}
    assert {name: record["status"] for name, record in records.items()} == {
        "unclipped+learning_rate=0.01+seed=0": "finished",
        "unclipped+learning_rate=300+seed=0": "diverged",
    }
    page = report("sweeps/learning_rate")
    assert "<h1>Learning rate</h1>" in page and "diverged" in page and "unclipped" in page


def train_all(spec: SweepConfig) -> list[RunResult]:
    """Every trial of a sweep, in this process: starting one takes longer than training it."""
    trials = plan_trials(spec, Path("sweeps", spec.name))
    for trial in trials:
        save_yaml(Path("trial.yaml"), trial.config)
        run("train", "--config", "trial.yaml")
    return [read_run(trial.config.run_folder) for trial in trials]


def test_batches_of_all_sizes_see_the_same_tokens(laboratory: Path) -> None:
    grid = {"batch_size": [1, 8], "optimizer.learning_rate": [0.002]}
    runs = train_all(load_sweep(shrink("batch_size", tokens=640, grid=grid)))
    seen = {(run.metrics.last("tokens"), run.metrics.last_step) for run in runs}
    assert seen == {(640, 40), (640, 5)}


def test_texts_are_compared_on_their_own_data(laboratory: Path) -> None:
    train_all(load_sweep(shrink("text", tokens=640)))
    page = report("sweeps/text/runs")
    assert "did not all learn from the same data" in page


def test_parts_are_taken_away_one_by_one(laboratory: Path) -> None:
    base = load_settings(RunConfig, CONFIGS / "train" / "web.yaml", SMALL)
    spec = ablation_spec(base, learning_rates=[0.003], tokens=320)
    runs = train_all(spec)
    assert len(runs) == len(spec.variants) > 7
    assert {run.outcome.state for run in runs} == {"finished"}


def test_the_recipe_keeps_to_its_time(laboratory: Path) -> None:
    spec = load_sweep(shrink("recipe", variants={"muon": {"optimizer.name": "muon"}}))
    (trial,) = plan_trials(spec, Path("sweeps/recipe"))
    assert (trial.config.minutes, trial.config.num_steps) == (1, None)
