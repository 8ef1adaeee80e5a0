"""The artefacts that faults are injected into: one of each, tiny, made once at the start."""

from __future__ import annotations

import contextlib
import fcntl
import os
import time
from collections.abc import Iterator
from pathlib import Path

import yaml
from harness import Child, Lost, groundup

SETTINGS = {
    "num_steps": 40,
    "batch_size": 2,
    "num_threads": 1,
    "device": "cpu",
    "model": {
        "vocab_size": 300,
        "context_length": 16,
        "d_model": 16,
        "num_layers": 1,
        "num_heads": 2,
    },
    "schedule": {"warmup_steps": 2},
    "evaluation": {"every_steps": 10, "num_windows": 4},
    "checkpoints": {"every_steps": 5},
    "logging": {"every_steps": 1},
    "samples": {"every_steps": 20, "max_tokens": 4},
}


class Artefacts:
    """Paths below the folder of a run; `make` fills them."""

    def __init__(self, work: Path) -> None:
        self.folder = work / "artefacts"
        self.text = self.folder / "stories.txt"
        self.tokenizer = self.folder / "tokenizer.json"
        self.foreign = self.folder / "foreign"
        self.shards = self.folder / "shards"
        self.settings = self.folder / "run.yaml"
        self.sweep = self.folder / "sweep.yaml"
        self.run = self.folder / "runs" / "whole"
        self.half = self.folder / "runs" / "half"
        self.export = self.folder / "export"

    def make(self) -> None:
        """Once for all processes that work in the same folder."""
        self.folder.mkdir(parents=True, exist_ok=True)
        with locked(self.folder / "made.lock") as is_made:
            if not is_made:
                self._make()

    def _make(self) -> None:
        text, tokenizer = str(self.text), str(self.tokenizer)
        groundup(self.folder, "data", "sample", "--megabytes", "0.3", "--out", text)
        groundup(self.folder, *f"tokenizer train {text} --vocab-size 300 --out {tokenizer}".split())
        self.foreign.mkdir()
        for format_name, name in FOREIGN.items():
            convert = ["tokenizer", "convert", tokenizer, "--to", format_name]
            groundup(self.folder, *convert, str(self.foreign / name))
        groundup(self.folder, *self.prepare_words(str(self.shards)))
        data = {"shards": str(self.shards), "tokenizer": tokenizer}
        self.settings.write_text(yaml.safe_dump({**SETTINGS, "data": data}), "utf-8")
        variants = {"variants": {"short": {"num_steps": 4}, "long": {"num_steps": 40}}}
        sweep = {"name": "small", "base": str(self.settings), **variants}
        self.sweep.write_text(yaml.safe_dump(sweep), "utf-8")
        groundup(self.folder, *self.train_words("whole"))
        self._make_half()
        groundup(self.folder, "export", str(self.run), "--to", "huggingface", str(self.export))

    def prepare_words(self, out: str) -> list[str]:
        words = f"data prepare {self.text} --tokenizer {self.tokenizer} --out {out}"
        return f"{words} --validation-fraction 0.1 --shard-ids 10000 --num-threads 1".split()

    def train_words(self, name: str) -> list[str]:
        return ["train", "--config", str(self.settings), "--name", name]

    def _make_half(self) -> None:
        """A run that was killed in the middle."""
        child = Child(self.folder, self.train_words("half"))
        end = time.monotonic() + 120
        while not (self.half / "checkpoints" / "step_000020").exists():
            if time.monotonic() > end:
                raise Lost("the run that is to be killed never saved")
            time.sleep(0.001)
        child.wait(0.0, kill=True)


FOREIGN = {
    "huggingface": "huggingface.json",
    "gpt2": "vocab.json",
    "tiktoken": "ranks.tiktoken",
}


@contextlib.contextmanager
def locked(path: Path) -> Iterator[bool]:
    """Hold a lock; tells whether a block like this one has ended well before."""
    with open(path, "a+") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        # Another process may have written since the file was opened.
        yield bool(file.seek(0, os.SEEK_END))
        file.write("done\n")
