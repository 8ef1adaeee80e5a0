"""The learning lab runs recipes side by side and leaves a result for each."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

LAB = Path(__file__).resolve().parent.parent.parent / "benchmarks" / "learning_lab.py"
SMALL: dict[str, Any] = {"d_model": 32, "layers": 2, "heads": 2, "vocab": 64}
SMALL |= {"context": 16, "batch": 4}
SMALL |= {"tokens": 1280, "evaluations": 2, "warmup": 2, "precision": "fp32"}
SMALL |= {"seconds": None, "d_ff": 64}


def test_each_recipe_learns_a_pattern_and_leaves_a_result(tmp_path: Path) -> None:
    ids = np.tile(np.arange(64, dtype=np.uint16), 50)
    ids.tofile(tmp_path / "train.bin")
    ids[: 8 * 16 + 1].tofile(tmp_path / "val.bin")
    meta = {"vocab_size": 64, "train_ids": len(ids), "val_ids": 129, "context": 16, "windows": 8}
    meta |= {"window_targets": 128, "window_bytes": 512, "end_id": 63}
    (tmp_path / "meta.json").write_text(json.dumps(meta))
    runs = [{"name": "nanogpt"}, {"name": "ours", "from": "ours"}, {"name": "win", "from": "win"}]
    (tmp_path / "runs.json").write_text(json.dumps({"runs": runs}))
    command = [sys.executable, str(LAB), str(tmp_path / "runs.json"), "--data", str(tmp_path)]
    command += ["--out", str(tmp_path), "--cache", str(tmp_path / "cache"), "--device", "cpu"]
    command += ["--workers", "1", "--no-compile", "--timed-steps", "5", "--set", json.dumps(SMALL)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=600)
    assert done.returncode == 0, done.stdout + done.stderr
    results = [json.loads(line) for line in (tmp_path / "results.jsonl").read_text().splitlines()]
    assert [result["name"] for result in results] == ["nanogpt", "ours", "win"], done.stdout
    for result in results:
        assert result["status"] == "finished", result
        assert result["final"] < np.log(64)
        assert result["tokens"] == 1280
