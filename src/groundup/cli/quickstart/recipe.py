"""The settings of the quickstart's run: small enough for two CPU cores and a few minutes.

In so short a time many small steps count most: a narrow model whose blocks begin as the identity,
small batches and Muon at a high learning rate that decays to zero. The same settings, to change,
are in `configs/train/quickstart.yaml`.
"""

from pathlib import Path

from groundup.model.config import preset
from groundup.runs.config import RunConfig

RUN_NAME = "stories"


def run_config(
    folder: Path, vocab_size: int, *, num_steps: int, sample_tokens: int, seed: int
) -> RunConfig:
    """A run of the quickstart preset in `folder`, whatever the number of steps."""
    model = preset("quickstart").model_copy(update={"vocab_size": vocab_size})
    return RunConfig.model_validate(
        {
            "name": RUN_NAME,
            "runs_folder": folder / "runs",
            "num_steps": num_steps,
            "batch_size": 8,
            "seed": seed,
            "model": model.model_dump(),
            "data": {"shards": folder / "shards", "tokenizer": folder / "tokenizer.json"},
            "optimizer": {"name": "muon", "learning_rate": 1.6e-2},
            "schedule": {
                "name": "linear",
                "warmup_steps": num_steps // 50,
                "min_learning_rate_ratio": 0.0,
            },
            "evaluation": {"every_steps": _part(num_steps, 4), "num_windows": 64},
            "checkpoints": {"every_steps": _part(num_steps, 4), "keep_last": 1},
            "logging": {"every_steps": _part(num_steps, 20)},
            "samples": {"every_steps": _part(num_steps, 4), "max_tokens": sample_tokens},
        }
    )


def _part(num_steps: int, count: int) -> int:
    """How often something happens that is to happen about `count` times."""
    return max(1, num_steps // count)
