"""The templates for Slurm, Kubernetes and SkyPilot: their scripts run with fake cluster programs,
and torchrun's parser and ours accept their arguments."""

import importlib
import os
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any, Literal

import pytest
import yaml

from groundup.cli.arguments import parse
from groundup.cli.train import Arguments
from groundup.runs.outcome import Outcome

REPOSITORY = Path(__file__).resolve().parent.parent
TEMPLATES = REPOSITORY / "docs" / "deployment"
CLUSTER = {
    "SLURM_JOB_ID": "7",
    "SLURM_JOB_NODELIST": "node[1-2]",
    "SLURM_NNODES": "2",
    "SLURM_GPUS_ON_NODE": "8",
    "SKYPILOT_NODE_IPS": "10.0.0.1\n10.0.0.2",
    "SKYPILOT_NUM_NODES": "2",
    "SKYPILOT_NUM_GPUS_PER_NODE": "8",
}


def script_of(name: str) -> list[str]:
    if name == "slurm":
        return ["bash", str(TEMPLATES / "train.slurm")]
    file = "skypilot.yaml" if name == "skypilot" else "pytorchjob.yaml"
    task = yaml.safe_load((TEMPLATES / file).read_text("utf-8"))
    if name == "skypilot":
        assert task["num_nodes"] == 2
        assert task["resources"]["job_recovery"]["max_restarts_on_errors"] > 0
        subprocess.run(["bash", "-n", "-c", task["setup"]], check=True)
        return ["bash", "-c", task["run"]]
    worker, policy = task["spec"]["pytorchReplicaSpecs"]["Worker"], task["spec"]["elasticPolicy"]
    assert policy["minReplicas"] == policy["maxReplicas"] == worker["replicas"] == 2
    assert policy["maxRestarts"] > 0 and worker["restartPolicy"] == "OnFailure"
    pod = worker["template"]["spec"]
    assert pod["terminationGracePeriodSeconds"] > 30
    (container,) = pod["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 8
    mounted = [mount["name"] for mount in container["volumeMounts"]]
    assert mounted == [volume["name"] for volume in pod["volumes"]]
    return [*container["command"], *container["args"]]


@pytest.fixture
def shared(tmp_path: Path) -> Path:
    """A shared folder with settings, an environment, and programs that record their arguments."""
    programs = tmp_path / "shared" / ".venv" / "bin"
    programs.mkdir(parents=True)
    (programs / "activate").touch()
    notes = tmp_path / "notes"
    note = f'for word in "$@"; do echo "$word"; done > {notes}.$(basename "$0")\n'
    for name, more in (
        ("torchrun", "exit ${EXIT:-0}"),
        ("srun", '"$@"'),
        ("scontrol", 'if [ "$1" = show ]; then echo node1; echo node2; fi'),
    ):
        program = programs / name
        program.write_text(f"#!/bin/sh\n{note}{more}\n")
        program.chmod(program.stat().st_mode | stat.S_IXUSR)
    shutil.copytree(REPOSITORY / "configs", tmp_path / "shared" / "configs")
    return tmp_path / "shared"


def call(script: list[str], shared: Path, **more: str) -> tuple[int, list[str]]:
    """Run a script; returns its exit status, and the arguments of torchrun."""
    path = f"{shared / '.venv' / 'bin'}:{os.environ['PATH']}"
    environment = {**os.environ, **CLUSTER, "SHARED": str(shared), "PATH": path, **more}
    done = subprocess.run(script, env=environment, capture_output=True, text=True)
    assert not done.stderr, done.stderr
    return done.returncode, (shared.parent / "notes.torchrun").read_text().splitlines()


def parsed(words: list[str], monkeypatch: pytest.MonkeyPatch, shared: Path) -> tuple[Any, Any]:
    """Parse the arguments with torchrun's parser and ours."""
    run = importlib.import_module("torch.distributed.run")
    of_torchrun = run.get_args_parser().parse_args(words)
    assert of_torchrun.module and of_torchrun.training_script == "groundup"
    verb, *rest = of_torchrun.training_script_args
    assert verb == "train"
    monkeypatch.chdir(shared)
    return of_torchrun, parse(Arguments, "groundup train", rest)


@pytest.mark.parametrize("name", ["slurm", "kubernetes", "skypilot"])
def test_templates_start_and_continue_runs(
    name: str, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = script_of(name)
    status, words = call(script, shared)
    assert status == 0
    of_torchrun, arguments = parsed(words, monkeypatch, shared)
    assert of_torchrun.nproc_per_node == "8" and of_torchrun.max_restarts > 0
    if name != "kubernetes":
        assert (of_torchrun.nnodes, of_torchrun.rdzv_backend) == ("2", "c10d")
        first = "node1" if name == "slurm" else "10.0.0.1"
        assert of_torchrun.rdzv_endpoint == f"{first}:29500"
    assert not arguments.resume and arguments.settings["name"] == "tinystories"
    (shared / "runs" / "tinystories").mkdir(parents=True)
    (shared / "runs" / "tinystories" / "config.yaml").write_text("name: tinystories\n")
    status, words = call(script, shared)
    assert status == 0 and words[-1] == "--resume"
    assert parsed(words, monkeypatch, shared)[1].resume


@pytest.mark.parametrize("state", ["stopped", "finished"])
def test_slurm_requeues_jobs_stopped_by_a_signal(
    shared: Path, state: Literal["stopped", "finished"]
) -> None:
    folder = shared / "runs" / "tinystories"
    folder.mkdir(parents=True)
    Outcome(state).write(folder / "outcome.json")
    assert call(script_of("slurm"), shared, EXIT="3")[0] == 3
    noted = (shared.parent / "notes.scontrol").read_text().splitlines()
    assert (noted == ["requeue", "7"]) == (state == "stopped")
    lines = (TEMPLATES / "train.slurm").read_text("utf-8").splitlines()
    options = {line.removeprefix("#SBATCH ") for line in lines if line.startswith("#SBATCH ")}
    assert {"--signal=TERM@120", "--requeue", "--open-mode=append"} <= options
    assert {"--ntasks-per-node=1", "--nodes=2"} <= options
