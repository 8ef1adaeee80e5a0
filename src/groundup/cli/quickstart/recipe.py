"""The settings of the quickstart's run: small enough for two CPU cores and a few minutes."""

from pathlib import Path

from groundup.model.config import preset
from groundup.training.config import RunConfig

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
            "batch_size": 16,
            "seed": seed,
            "device": "auto",
            "model": model.model_dump(),
            "data": {"shards": folder / "shards", "tokenizer": folder / "tokenizer.json"},
            "optimizer": {"name": "muon"},
            "schedule": {"warmup_steps": num_steps // 50},
            "evaluation": {"every_steps": _part(num_steps, 4), "num_windows": 64},
            "checkpoints": {"every_steps": _part(num_steps, 6), "keep_last": 1},
            "logging": {"every_steps": _part(num_steps, 24)},
            "samples": {"every_steps": _part(num_steps, 4), "max_tokens": sample_tokens},
        }
    )


def _part(num_steps: int, count: int) -> int:
    """How often something happens that is to happen about `count` times."""
    return max(1, num_steps // count)
