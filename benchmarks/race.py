"""Which recipe has the lower validation loss after the same time: ours, or nanoGPT's?

    python benchmarks/race.py configs/train/speedrun.yaml --seconds 60 --seeds 0 1 2 --out race.json

Ours is `groundup train` with the settings of the file. The rival is nanoGPT's architecture and
recipe at the same size: LayerNorm, learned positions, GELU, tied embeddings, its initialization,
AdamW with weight decay 0.1 on all matrices, a cosine to a tenth, independently sampled windows, the
model compiled; it runs once for each of `--rates`, and its best counts. Both use the same shards
and evaluation windows.

Each entry runs in its own process. It compiles and times a step first, then takes as many steps as
fit into the time, so that neither compilation nor evaluation counts.
"""

from __future__ import annotations

import argparse
import functools
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from groundup.config import load_settings
from groundup.data.shards import Shards
from groundup.experiments.statistics import Interval, confidence_interval
from groundup.model.config import ModelConfig
from groundup.planner import count_parameters
from groundup.runs.config import RunConfig, as_fractions
from groundup.runs.folder import RunFolder
from groundup.training.data import RunData, open_data
from groundup.training.evaluation import Evaluator
from groundup.training.loop import train
from groundup.training.resolve import resolve_device
from measure import OURS, Json
from train_peers import GptLM, fused_adamw, gpt_form, take_step

_PEER = "nanoGPT"
_TIMED_STEPS = 200
_OFF = {"every_steps": 0}
_NUM_EVALUATIONS = 10


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("config", type=Path, help="our recipe")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="our settings")
    parser.add_argument("--seconds", nargs="+", type=float, default=[60.0])
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--rates", nargs="*", type=float, default=[6e-4, 1e-3, 3e-3])
    parser.add_argument("--out", type=Path, default=Path("build/race.json"))
    options = parser.parse_args()
    changes = dict(one.split("=", 1) for one in options.set)
    values = {name: _parsed(value) for name, value in changes.items()}
    config = resolve_device(load_settings(RunConfig, options.config, values))
    entries: list[Json] = [
        {"tool": OURS, "seconds": seconds, "seed": seed, "settings": values}
        for seconds in options.seconds
        for seed in options.seeds
    ]
    entries += [
        {"tool": _PEER, "seconds": max(options.seconds), "seed": seed, "rate": rate}
        for rate in options.rates
        for seed in options.seeds
    ]
    results = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for entry in entries:
        # A fresh process: memory, compiled code and random state start anew.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            result = pool.apply(_run, (entry, config))
        results.append(result)
        # Saved at once: a race takes long.
        options.out.write_text(json.dumps({"config": str(options.config), "results": results}))
        print(_describe(result), flush=True)
    print(_table(results))
    return 0


def _parsed(value: str) -> Any:
    try:
        return json.loads(value)
    except json.JSONDecodeError:
        return value


def _run(entry: Json, config: RunConfig) -> Json:
    config = config.model_copy(update={"seed": entry["seed"]})
    began = time.monotonic()
    result = (_run_ours if entry["tool"] == OURS else _run_peer)(entry, config)
    return entry | result | {"process_seconds": round(time.monotonic() - began, 1)}


def _run_ours(entry: Json, config: RunConfig) -> Json:
    """Train for some steps to time one, then for as many as fit into the time."""
    with tempfile.TemporaryDirectory() as folder:
        quiet = {"runs_folder": Path(folder), "samples": config.samples.model_copy(update=_OFF)}
        config = config.model_copy(update=quiet)
        num_timed = _TIMED_STEPS if config.device.startswith("cuda") else 6
        timed = _with(config, num_timed, "timed", evaluations=1, logs=2)
        train(timed)
        speed = _records(timed)[-1]["tokens_per_second"]
        num_steps = max(1, round(entry["seconds"] * speed / config.tokens_per_step))
        whole = _with(config, num_steps, "whole", evaluations=_NUM_EVALUATIONS, logs=20)
        summary = train(whole)
        records = _records(whole)
    curve = [(one["tokens"], one["validation_loss"]) for one in records if "validation_loss" in one]
    speeds = [one["tokens_per_second"] for one in records[3:] if "tokens_per_second" in one]
    return {
        "parameters": sum(count_parameters(config.model).values()),
        "tokens": summary.tokens,
        "milliseconds": 1e3 * config.tokens_per_step / statistics.median(speeds or [speed]),
        "loss": records[-1].get("loss"),
        "validation_loss": summary.validation_loss,
        "bits_per_byte": summary.bits_per_byte,
        "curve": curve,
    }


def _records(config: RunConfig) -> list[Json]:
    lines = (config.run_folder / "metrics.jsonl").read_text("utf-8").splitlines()
    return [json.loads(line) for line in lines]


def _with(
    config: RunConfig, num_steps: int, name: str, *, evaluations: int, logs: int
) -> RunConfig:
    """The run with another length and logging interval, saved only at its end."""
    values = {**config.model_dump(), **as_fractions(config), "num_steps": num_steps}
    config = load_settings(RunConfig, None, values)
    evaluation = {"every_steps": max(1, num_steps // evaluations)}
    logging = {"every_steps": max(1, num_steps // logs)}
    return config.model_copy(
        update={
            "name": name,
            "evaluation": config.evaluation.model_copy(update=evaluation),
            "logging": config.logging.model_copy(update=logging),
            "checkpoints": config.checkpoints.model_copy(update=_OFF),
        }
    )


class _Peer(nn.Module):
    """Adapts `GptLM` to the evaluator's interface."""

    def __init__(self, config: ModelConfig) -> None:
        super().__init__()
        self.lm = GptLM(gpt_form(config))
        for name, parameter in self.lm.named_parameters():
            # nanoGPT's initialization: residual projections are scaled down with the depth.
            if name.endswith(("output.weight", "down.weight")):
                nn.init.normal_(parameter, std=0.02 / math.sqrt(2 * config.num_layers))

    @property
    def device(self) -> torch.device:
        return self.lm.token_embedding.weight.device

    def loss(self, ids: Tensor, targets: Tensor, z_loss: float, reduction: str, _: None) -> Tensor:
        assert reduction == "sum" and not z_loss
        loss: Tensor = self.lm(ids, targets) * targets.numel()
        return loss


def _run_peer(entry: Json, config: RunConfig) -> Json:
    torch.manual_seed(entry["seed"])
    torch.set_float32_matmul_precision("high")
    device = torch.device(config.device)
    data = open_data(config, RunFolder("."), {})
    evaluator = data.evaluator(config)
    assert evaluator is not None
    model = _Peer(config.model).to(device)
    compute_loss = torch.compile(model.lm) if device.type == "cuda" else model.lm
    step = functools.partial(take_step, compute_loss)
    batches = _IndependentWindows(data, config, device)
    optimizer = fused_adamw(model, 0.0)
    # With a learning rate of 0 the weights do not change, and the moments decay within a few steps.
    for _ in range(10):
        step(optimizer, 1.0, batches.sample())
    milliseconds = _time_steps(lambda: step(optimizer, 1.0, batches.sample()), device)
    num_steps = max(1, round(1e3 * entry["seconds"] / milliseconds))
    optimizer = fused_adamw(model, 0.0)
    every, curve, loss = max(1, num_steps // _NUM_EVALUATIONS), [], torch.zeros(())
    for number in range(1, num_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = entry["rate"] * _cosine(number, num_steps)
        loss, _ = step(optimizer, 1.0, batches.sample())
        if number % every == 0:
            curve.append((number * config.tokens_per_step, _evaluate(evaluator, model).loss))
    evaluation = _evaluate(evaluator, model)
    return {
        "parameters": sum(one.numel() for one in model.parameters()),
        "tokens": num_steps * config.tokens_per_step,
        "milliseconds": milliseconds,
        "loss": loss.item(),
        "validation_loss": evaluation.loss,
        "bits_per_byte": evaluation.bits_per_byte,
        "curve": curve,
    }


class _IndependentWindows:
    """Yield batches of windows at random positions of the split, which is kept on the device."""

    def __init__(self, data: RunData, config: RunConfig, device: torch.device) -> None:
        assert isinstance(data.train, Shards)
        ids = data.train.read(0, data.train.num_tokens).astype("int32")
        self._ids = torch.from_numpy(ids).to(device)
        self._offsets = torch.arange(config.model.context_length + 1, device=device)
        self._last = data.train.num_tokens - len(self._offsets)
        self._batch_size = config.batch_size

    def sample(self) -> tuple[Tensor, Tensor]:
        starts = torch.randint(self._last + 1, (self._batch_size, 1), device=self._ids.device)
        windows = self._ids[starts + self._offsets].long()
        return windows[:, :-1].contiguous(), windows[:, 1:].contiguous()


def _time_steps(step: Any, device: torch.device) -> float:
    num_steps = _TIMED_STEPS // 2 if device.type == "cuda" else 3
    _wait_for(device)
    began = time.perf_counter()
    for _ in range(num_steps):
        step()
    _wait_for(device)
    return 1e3 * (time.perf_counter() - began) / num_steps


def _wait_for(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def _evaluate(evaluator: Evaluator, model: _Peer) -> Any:
    kind = model.device.type
    half = functools.partial(torch.autocast, kind, torch.bfloat16, enabled=kind == "cuda")
    return evaluator(model, half)  # type: ignore[arg-type]


def _cosine(step: int, num_steps: int, least: float = 0.1) -> float:
    warmup = min(150, num_steps // 4)
    if step <= warmup:
        return step / max(1, warmup)
    progress = (step - warmup) / max(1, num_steps - warmup)
    return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * progress))


def _name(result: Json) -> str:
    rate = f" at {result['rate']:g}" if "rate" in result else ""
    return f"{result['tool']}{rate}, {result['seconds']:g} s"


def _describe(result: Json) -> str:
    return (
        f"{_name(result)}, seed {result['seed']}: validation loss {result['validation_loss']:.4f}, "
        f"{result['bits_per_byte']:.4f} bits per byte, {result['tokens'] / 1e6:.0f}M tokens, "
        f"{result['milliseconds']:.2f} ms a step, {result['parameters'] / 1e6:.1f}M parameters, "
        f"{result['process_seconds']:.0f} s in all"
    )


def _table(results: list[Json]) -> str:
    """Print a line per entry over its seeds, and the winner if the intervals do not overlap."""
    groups: dict[str, list[Json]] = {}
    for result in results:
        groups.setdefault(_name(result), []).append(result)
    losses: dict[str, Interval] = {}
    lines = []
    for name, group in groups.items():
        loss = confidence_interval([one["validation_loss"] for one in group])
        if loss is None:
            lines.append(f"{name:32} diverged")
            continue
        losses[name] = loss
        spread = "(one seed)" if loss.half_width is None else f"± {loss.half_width:.4f}"
        bits = statistics.fmean(one["bits_per_byte"] for one in group)
        lines.append(f"{name:32} {loss.mean:.4f} {spread}, {bits:.4f} bits per byte")
    peers = [name for name in losses if groups[name][0]["tool"] == _PEER]
    if peers:
        best = min(peers, key=lambda name: losses[name].mean)
        for name in [name for name in losses if name not in peers]:
            lower = losses[best].mean - losses[name].mean
            verdict = "leads" if lower > 0 and losses[name].is_apart_from(losses[best]) else ""
            lines.append(f"{name} against {best}: {lower:+.4f} lower, {verdict or 'no winner'}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
