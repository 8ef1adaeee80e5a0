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
from groundup.data.prepare import prepare
from groundup.data.samples import write_sample_corpus
from groundup.files import read_json_lines
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


@pytest.fixture(scope="module")
def laboratory(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder to work in, with `web` where the settings look for it."""
    folder = tmp_path_factory.mktemp("laboratory")
    (folder / "web").mkdir()
    corpus, tokenizer_file = folder / "web.txt", folder / "web" / "tokenizer.json"
    write_sample_corpus(corpus, megabytes=0.06, seed=1)
    tokenizer, _ = train_tokenizer([corpus.read_bytes()], 300, ["<|endoftext|>"])
    tokenizer.save(tokenizer_file)
    shards = folder / "web" / "shards"
    prepare([corpus], Tokenizer.load(tokenizer_file), shards, validation_fraction=0.1)
    before = Path.cwd()
    with pytest.MonkeyPatch.context() as patch:
        # For processes that are started from the new folder.
        patch.setenv("PYTHONPATH", str(CONFIGS.parent / "src"))
        patch.setenv("OMP_NUM_THREADS", "1")
        os.chdir(folder)
        yield folder
        os.chdir(before)


def run(*words: str) -> None:
    assert main(words) == 0


def test_learning_rates_are_swept_beyond_the_edge(laboratory: Path) -> None:
    # A model so small bears far more than a real one.
    grid = {"optimizer.learning_rate": [0.01, 300.0]}
    variants = {"unclipped": {"clip_norm": None}}
    spec = yaml.safe_load((CONFIGS / "sweep" / "learning_rate.yaml").read_text("utf-8"))
    spec |= {"base": str(CONFIGS / "train" / "web.yaml"), "settings": SMALL, "seeds": [0]}
    spec |= {"tokens": 3_200, "grid": grid, "variants": variants}
    sweep = "learning_rate.yaml"
    Path(sweep).write_text(yaml.safe_dump(spec), "utf-8")
    run("sweep", sweep, "--jobs", "2")
    records = {
        record["trial"]: record for record in read_json_lines("sweeps/learning_rate/trials.jsonl")
    }
    assert {name: record["status"] for name, record in records.items()} == {
        "unclipped+learning_rate=0.01+seed=0": "finished",
        "unclipped+learning_rate=300+seed=0": "diverged",
    }
    run("report", "sweeps/learning_rate", "--out", "page.html")
    page = Path("page.html").read_text("utf-8")
    assert "<h1>Learning rate</h1>" in page and "diverged" in page and "unclipped" in page
