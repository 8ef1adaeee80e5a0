"""The memory that the planner gives a run on a CPU against what the process of a real one took."""

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from groundup.config import save_yaml
from groundup.runs.config import RunConfig
from groundup.runs.folder import RunFolder
from groundup.training.execution import planned_memory, resolve

MakeConfig = Callable[..., RunConfig]

# The compiler, which nothing here asks for, takes 70 MB and two seconds.
PROGRAM = """
import sys
from groundup.cli.main import main
assert main(sys.argv[1:]) == 0 and "torch._dynamo" not in sys.modules
"""

# Beside the interpreter, weights and their averages are the most of it; tests/planner looks at
# activations.
SHAPE: dict[str, Any] = {
    "batch_size": 4,
    "model.vocab_size": 2_048,
    "model.context_length": 64,
    "model.d_model": 512,
    "model.num_layers": 16,
    "model.d_ff": 1_344,
}


@pytest.mark.skipif(sys.platform != "linux", reason="other systems keep freed memory otherwise")
def test_a_run_with_evaluations_and_checkpoints_takes_the_memory_that_is_planned(
    make_config: MakeConfig, tmp_path: Path, repository: Path
) -> None:
    changes = {"num_steps": 2, "num_threads": 1, "precision": "float32", **SHAPE}
    config = resolve(make_config("run", changes))
    save_yaml(tmp_path / "run.yaml", config)
    command = [sys.executable, "-c", PROGRAM, "train", "--config", str(tmp_path / "run.yaml")]
    environment = {"PYTHONPATH": str(repository / "src"), "OMP_NUM_THREADS": "1"}
    subprocess.run(command, capture_output=True, env=environment, check=True, timeout=300)
    lines = RunFolder(config.run_folder).metrics_file.read_text("utf-8").splitlines()
    memory = planned_memory(config)
    planned = memory.process_bytes + memory.bytes_at(config.batch_size)
    measured = json.loads(lines[-1])["memory_bytes"]
    assert 0.95 * measured < planned < 1.09 * measured
    # Neither of the optimizer's averages can be missing from the plan without this being seen.
    assert planned - memory.optimizer_state // 2 < 0.95 * measured
