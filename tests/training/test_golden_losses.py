"""The losses of a fixed small run, bitwise, on CPUs for which they are recorded.

Detects unintended changes of numbers. Another CPU or torch version sums in another order: then the
test is skipped, until it is run with GROUNDUP_GOLDEN=write and golden_losses.json is committed.
"""

import json
import os
import platform
from collections.abc import Callable
from pathlib import Path

import pytest
import torch

from groundup.files import read_json_lines
from groundup.runs.config import RunConfig
from groundup.training import train

FILE = Path(__file__).with_name("golden_losses.json")
SETTINGS = {
    "adamw": {"batch_size": 8, "micro_batch_size": 2},
    "muon": {"optimizer.name": "muon", "model.qk_norm": True, "model.tie_embeddings": True},
}


def processor() -> str:
    """What determines the last bits: the type of CPU, and torch's version."""
    fields = ("CPU implementer", "CPU part", "vendor_id", "cpu family", "model")
    found: dict[str, str] = {}
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        name, _, value = line.partition(":")
        if name.strip() in fields:
            found.setdefault(name.strip(), value.strip())
    capability = torch.backends.cpu.get_cpu_capability()
    version = torch.__version__.partition("+")[0]
    return " ".join([platform.machine(), *found.values(), capability, "torch", version])


@pytest.mark.skipif(not Path("/proc/cpuinfo").exists(), reason="the processor has no name here")
def test_losses_equal_the_recorded_ones(make_config: Callable[..., RunConfig]) -> None:
    losses = {}
    for name, changes in SETTINGS.items():
        config = make_config(name, changes)
        train(config)
        records = read_json_lines(config.run_folder / "metrics.jsonl")
        losses[name] = [float(record["loss"]).hex() for record in records]
    golden = json.loads(FILE.read_text())
    key = processor()
    if os.environ.get("GROUNDUP_GOLDEN") == "write":
        FILE.write_text(json.dumps({**golden, key: losses}, indent=1, sort_keys=True) + "\n")
    elif key not in golden:
        pytest.skip(f"no losses have been written down for {key}")
    else:
        assert losses == golden[key]
