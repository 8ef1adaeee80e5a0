"""How much of their speed do several processes keep, what does the exact reduction cost, and what
would larger worlds do?

Measured: `torchrun -m groundup train` on the CPU with the built-in stories, one thread a process,
ways taking turns; runs that add exactly must end with the same loss, to the bit. Simulated: worlds
of 8, 64 and 512 GPUs, by the planner from the speed of one, as `train_step` measured it or given.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import io
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from corpora import CACHE
from groundup.cli.main import main as groundup
from groundup.model.config import PRESETS, ModelConfig
from groundup.planner import (
    describe_cpu,
    get_accelerator,
    make_plan,
    training_flops_per_token,
)
from groundup.planner.hardware import rate_in
from groundup.planner.scaling import plan_scaling
from machine import describe_hardware, describe_versions, result_name
from measure import RESULTS

Json = dict[str, Any]

_QUESTION = "How much speed do several processes keep?"
_MODEL = {"context_length": 128, "d_model": 128, "num_layers": 4, "num_heads": 4}
_QUICK_MODEL = {"context_length": 16, "d_model": 32, "num_layers": 1, "num_heads": 2}
_BATCH_SIZE = 16
_SIZES = (8, 64, 512)


def main() -> int:
    arguments = _parse()
    result: Json = {
        "benchmark": "scaling",
        "question": _QUESTION,
        "date": datetime.datetime.now(datetime.UTC).date().isoformat(),
        "quick": arguments.quick,
        "hardware": describe_hardware(),
        "conditions": "one thread a process, the built-in stories, the same batch for all",
        "versions": describe_versions(("torch", "groundup")),
        "rows": [],
    }
    if not arguments.only_simulate:
        with tempfile.TemporaryDirectory(prefix="groundup-scaling-") as folder:
            result["rows"] += _measure(arguments, Path(folder))
    result["rows"] += _simulate(arguments)
    for row in result["rows"]:
        print(_describe(row), flush=True)
    out = arguments.out or (CACHE / "quick" if arguments.quick else RESULTS)
    out.mkdir(parents=True, exist_ok=True)
    (out / result_name("scaling")).write_text(json.dumps(result, indent=2) + "\n")
    return 0


def _measure(arguments: argparse.Namespace, folder: Path) -> list[Json]:
    """A row for every reduction and number of processes that the cores allow."""
    text, tokenizer, shards = (str(folder / name) for name in ("t.txt", "t.json", "shards"))
    megabytes, vocab_size = ("0.2", "300") if arguments.quick else ("5", "2048")
    for words in (
        ["data", "sample", "--megabytes", megabytes, "--seed", "0", "--out", text],
        ["tokenizer", "train", text, "--vocab-size", vocab_size, "--out", tokenizer],
        ["data", "prepare", text, "--tokenizer", tokenizer, "--out", shards],
    ):
        with contextlib.redirect_stdout(io.StringIO()):
            status = groundup(words)
        if status != 0:
            sys.exit(status)
    cores = int(describe_hardware()["cores"])
    worlds = sorted({1, *(size for size in arguments.processes if size <= cores)})
    for size in sorted(set(arguments.processes) - set(worlds)):
        print(f"{size} processes are left out: there are {cores} cores")
    ways = [(size, reduction) for reduction in ("fast", "exact") for size in worlds]
    speeds: dict[tuple[int, str], list[float]] = {way: [] for way in ways}
    losses: dict[tuple[int, str], str] = {}
    for number in range(1 if arguments.quick else arguments.rounds):
        for way in ways if number % 2 == 0 else ways[::-1]:
            speed, losses[way] = _train(way, folder, f"{way[0]}-{way[1]}-{number}", arguments)
            speeds[way].append(speed)
    exact = {losses[way] for way in ways if way[1] == "exact"}
    if len(exact) != 1:
        sys.exit(f"error: the exact reduction gave other losses on other worlds: {sorted(exact)}")
    medians = {way: statistics.median(values) for way, values in speeds.items()}
    return [
        {
            "name": f"{reduction}.{size}",
            "is_simulated": False,
            "num_processes": size,
            "reduction": reduction,
            "tokens_per_second": medians[size, reduction],
            "values": speeds[size, reduction],
            "efficiency": medians[size, reduction] / size / medians[1, reduction],
            "planned_efficiency": _planned(size, reduction, medians[1, reduction], arguments),
            "loss": losses[size, reduction],
        }
        for size, reduction in ways
    ]


def _train(
    way: tuple[int, str], folder: Path, name: str, arguments: argparse.Namespace
) -> tuple[float, str]:
    """The median speed of a run after its first log line, and its last loss in all its bits."""
    size, reduction = way
    model = _QUICK_MODEL if arguments.quick else _MODEL
    num_steps, every = (6, 2) if arguments.quick else (30, 5)
    settings = {
        "name": name,
        "runs-folder": folder,
        "num-steps": num_steps,
        "batch-size": _BATCH_SIZE,
        "micro-batch-size": _BATCH_SIZE // max(arguments.processes),
        "device": "cpu",
        "num-threads": 1,
        "logging.every-steps": every,
        "evaluation.every-steps": 0,
        "checkpoints.every-steps": 0,
        "distributed.reduction": reduction,
        "data.shards": folder / "shards",
        "data.tokenizer": folder / "t.json",
        **{f"model.{key.replace('_', '-')}": value for key, value in model.items()},
    }
    flags = [word for key, value in settings.items() for word in (f"--{key}", str(value))]
    launcher = ["torch.distributed.run", "--standalone", "--nproc-per-node", str(size)]
    command = [sys.executable, "-m", *launcher, "-m", "groundup", "train", *flags]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=900)
    if done.returncode != 0:
        sys.exit(f"error: {name} failed:\n{done.stderr[-2000:]}")
    lines = (folder / name / "metrics.jsonl").read_text().splitlines()
    records = [record for record in map(json.loads, lines) if "tokens_per_second" in record]
    speed = statistics.median(record["tokens_per_second"] for record in records[1:])
    return speed, float(records[-1]["loss"]).hex()


def _planned(size: int, reduction: str, speed: float, arguments: argparse.Namespace) -> float:
    """What the planner expects of so many processes from the speed of one."""
    sizes, vocab_size = (_QUICK_MODEL, 300) if arguments.quick else (_MODEL, 2_048)
    model, core = ModelConfig(vocab_size=vocab_size, **sizes), describe_cpu(1, 2**34)
    mfu = speed * training_flops_per_token(model) / core.float32_flops_per_second
    plan = make_plan(model, core, batch_size=_BATCH_SIZE, num_steps=1, mfu=min(1, mfu))
    micro_batch = _BATCH_SIZE // max(arguments.processes)
    scaling = plan_scaling(plan, num_gpus=size, gpus_per_machine=size, micro_batch=micro_batch)
    return scaling.strategies["ddp, exact" if reduction == "exact" else "ddp"].efficiency


def _simulate(arguments: argparse.Namespace) -> Iterator[Json]:
    """Rows of larger worlds: each GPU has the batch that the speed of one was measured with."""
    for name, model, batch_size, speed in _measured_speeds(arguments):
        device = get_accelerator(arguments.device)
        peak = rate_in(device, "bfloat16") or device.float32_flops_per_second
        mfu = speed * training_flops_per_token(model) / peak
        plan = make_plan(model, device, batch_size=64 * batch_size, num_steps=1, mfu=mfu)
        scaling = plan_scaling(
            plan, num_gpus=64, interconnects=arguments.interconnect, micro_batch=batch_size
        )
        for size in _SIZES:
            yield {
                "name": f"simulated.{name}.{size}",
                "is_simulated": True,
                "num_processes": size,
                "device": device.name,
                "interconnects": [scaling.cluster.inside.name, scaling.cluster.across.name],
                "tokens_per_second_of_one": speed,
                "sequences_per_gpu": batch_size,
                "efficiency": scaling.same_batch_per_gpu[size],
            }


def _measured_speeds(
    arguments: argparse.Namespace,
) -> Iterator[tuple[str, ModelConfig, int, float]]:
    """A name, a model, its batch, and the tokens/s of one GPU."""
    if arguments.tokens_per_second is not None:
        batch_size, speed = arguments.batch_size, arguments.tokens_per_second
        yield arguments.preset, PRESETS[arguments.preset], batch_size, speed
        return
    rows = json.loads((RESULTS / "train_step_cuda_x86_64.json").read_text())["rows"]
    speeds = {row["name"]: row["tools"]["groundup"]["median"] for row in rows}
    from train_step import RUNS

    for run in RUNS["cuda"]:
        model = ModelConfig.model_validate(run.model)
        yield run.name, model, run.batch_size, speeds[f"{run.name}.speed"]


def _describe(row: Json) -> str:
    if not row["is_simulated"]:
        return (
            f"{row['name']}: {row['tokens_per_second']:,.0f} tokens/s, "
            f"{row['efficiency']:.1%} of one process for each, planned "
            f"{row['planned_efficiency']:.1%}"
        )
    shown = ", ".join(
        f"{name} {'too large' if one is None else f'{one:.1%}'}"
        for name, one in row["efficiency"].items()
    )
    links = " and ".join(row["interconnects"])
    return f"{row['name']} ({row['device']}, {links}), simulated and not measured: {shown}"


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=_QUESTION)
    parser.add_argument("--quick", action="store_true", help="a tiny model: a rehearsal")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], help="how many")
    parser.add_argument("--rounds", type=int, default=3, help="runs of every way")
    parser.add_argument("--only-simulate", action="store_true", help="train nothing")
    parser.add_argument("--device", default="H200", help="of the simulation")
    parser.add_argument("--interconnect", nargs="+", default=[], help="as groundup plan takes it")
    parser.add_argument("--tokens-per-second", type=float, help="of one GPU, to simulate with")
    parser.add_argument("--preset", choices=PRESETS, default="gpt2-small", help="the model of that")
    parser.add_argument("--batch-size", type=int, default=32, help="sequences of each GPU of that")
    parser.add_argument("--out", type=Path, help="the folder of the result")
    return parser.parse_args()


if __name__ == "__main__":
    sys.exit(main())
