"""Which recipe has the lower validation loss after the same time on the same text?

    python benchmarks/race.py configs/train/speedrun.yaml nanogpt@1e-3 autoresearch/train.py \
        --set data.shards=web/shards data.tokenizer=web/tokenizer.json \
        --seconds 60 --seeds 0 1 2 --out race.json

Entries, each in its own process:

- a YAML file: `groundup train` with its settings;
- `nanogpt@RATE`: nanoGPT's architecture and recipe at the size of the first YAML file and this
  learning rate: LayerNorm, learned positions, GELU, tied embeddings, its initialization, AdamW with
  weight decay 0.1 on all matrices, a cosine to a tenth, independently sampled windows, the model
  compiled; give several rates, the best one counts;
- a Python file: a training script with autoresearch's interface, unchanged, see `race_program.py`.

All train on the shards of the first YAML file and predict every token of the validation split once,
in windows of their own context. Compilation and evaluation do not count: ours and nanoGPT time a
step first, then take as many as fit; a script keeps its own time. `lines` are those of a script,
and of all modules of groundup and of this folder that an entry's process has loaded.
"""

from __future__ import annotations

import argparse
import functools
import itertools
import json
import math
import multiprocessing
import statistics
import sys
import tempfile
import time
from pathlib import Path

import torch
import yaml
from torch import Tensor, nn

import groundup
from groundup.config import load_settings
from groundup.data.shards import Shards
from groundup.experiments.statistics import confidence_interval
from groundup.model.config import ModelConfig
from groundup.planner import count_parameters
from groundup.runs.config import RunConfig, as_fractions
from groundup.runs.folder import RunFolder
from groundup.training.data import RunData, open_data
from groundup.training.loop import train
from groundup.training.resolve import resolve_device
from machine import timed_again, timed_on_cuda
from measure import Json
from race_program import run_program
from train_peers import GptLM, fused_adamw, gpt_form, take_step

_PEER = "nanogpt@"
_TIMED_STEPS = 200
_OFF = {"every_steps": 0}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("entries", nargs="+", help="YAML files, nanogpt@RATE, or Python files")
    parser.add_argument("--set", nargs="*", default=[], metavar="NAME=VALUE", help="our settings")
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seeds", nargs="*", type=int, default=[0, 1, 2])
    parser.add_argument("--out", type=Path, default=Path("build/race.json"))
    options = parser.parse_args()
    changes = dict(one.split("=", 1) for one in options.set)
    values = {name: yaml.safe_load(value) for name, value in changes.items()}
    configs = {
        name: resolve_device(load_settings(RunConfig, Path(name), values))
        for name in options.entries
        if name.endswith((".yaml", ".yml"))
    }
    if not configs:
        parser.error("give a YAML file first: the others race on its data")
    first = next(iter(configs.values()))
    entries: list[Json] = [
        {"entry": name, "seconds": options.seconds, "seed": seed}
        for name in options.entries
        for seed in options.seeds
    ]
    results = []
    options.out.parent.mkdir(parents=True, exist_ok=True)
    for entry in entries:
        # A fresh process: memory, compiled code and random state start anew.
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            result = pool.apply(_run, (entry, configs.get(entry["entry"], first)))
        results.append(result)
        # Saved at once: a race takes long.
        options.out.write_text(json.dumps({"settings": values, "results": results}))
        print(_describe(result), flush=True)
    print(_table(results))
    return 0


def _run(entry: Json, config: RunConfig) -> Json:
    whole = config.evaluation.model_copy(update={"num_windows": None} | _OFF)
    config = config.model_copy(update={"seed": entry["seed"], "evaluation": whole})
    began = time.monotonic()
    if entry["entry"].endswith(".py"):
        data = open_data(config, RunFolder("."), {})
        result = run_program(Path(entry["entry"]), data, config, entry["seconds"])
    else:
        result = (_run_peer if entry["entry"].startswith(_PEER) else _run_ours)(entry, config)
    seconds = round(time.monotonic() - began, 1)
    return entry | result | {"lines": _loaded_lines(entry), "process_seconds": seconds}


def _loaded_lines(entry: Json) -> int:
    files = {getattr(module, "__file__", None) or "" for module in list(sys.modules.values())}
    folders = (str(Path(groundup.__file__).parent), str(Path(__file__).parent), entry["entry"])
    ours = {one for one in [*files, entry["entry"]] if one.startswith(folders)}
    ours = {one for one in ours if one.endswith(".py")}
    return sum(len(Path(one).read_text("utf-8").splitlines()) for one in ours)


def _run_ours(entry: Json, config: RunConfig) -> Json:
    """Train for some steps to time one, then for as many as fit into the time."""
    with tempfile.TemporaryDirectory() as folder:
        quiet = {"runs_folder": Path(folder), "samples": config.samples.model_copy(update=_OFF)}
        config = config.model_copy(update=quiet)
        num_timed = _TIMED_STEPS if config.device.startswith("cuda") else 6
        timed = _with(config, num_timed, "timed")
        train(timed)
        lines = (timed.run_folder / "metrics.jsonl").read_text("utf-8").splitlines()
        speed = json.loads(lines[-1])["tokens_per_second"]
        num_steps = max(1, round(entry["seconds"] * speed / config.tokens_per_step))
        summary = train(_with(config, num_steps, "whole"))
    return {
        "parameters": sum(count_parameters(config.model).values()),
        "tokens": summary.tokens,
        "validation_loss": summary.validation_loss,
        "bits_per_byte": summary.bits_per_byte,
    }


def _with(config: RunConfig, num_steps: int, name: str) -> RunConfig:
    """The run with another length, saved only at its end."""
    values = {**config.model_dump(), **as_fractions(config), "num_steps": num_steps}
    logging = config.logging.model_copy(update={"every_steps": max(1, num_steps // 2)})
    checkpoints = config.checkpoints.model_copy(update=_OFF)
    changes = {"name": name, "logging": logging, "checkpoints": checkpoints}
    return load_settings(RunConfig, None, values).model_copy(update=changes)


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
    rate = float(entry["entry"].removeprefix(_PEER))
    torch.set_float32_matmul_precision("high")
    device = torch.device(config.device)
    data = open_data(config, RunFolder("."), {})
    evaluator = data.evaluator(config)
    assert evaluator is not None
    model = _Peer(config.model).to(device)
    is_cuda = device.type == "cuda"
    compute_loss = torch.compile(model.lm) if is_cuda else model.lm
    step = functools.partial(take_step, compute_loss)
    batches = _IndependentWindows(data, config, device)
    optimizer = fused_adamw(model, 0.0)
    # With a learning rate of 0 the weights do not change, and the moments decay within a few steps.
    for _ in range(10):
        step(optimizer, 1.0, batches.sample())
    arguments = (functools.partial(step, optimizer, 1.0), lambda: (batches.sample(),))
    seconds = timed_on_cuda(*arguments, _TIMED_STEPS) if is_cuda else timed_again(*arguments, 3)
    num_steps = max(1, round(entry["seconds"] / seconds.seconds))
    optimizer = fused_adamw(model, 0.0)
    for number in range(1, num_steps + 1):
        for group in optimizer.param_groups:
            group["lr"] = rate * _cosine(number, num_steps)
        step(optimizer, 1.0, batches.sample())
    half = functools.partial(torch.autocast, device.type, torch.bfloat16, enabled=is_cuda)
    evaluation = evaluator(model, half)  # type: ignore[arg-type]
    return {
        "parameters": sum(one.numel() for one in model.parameters()),
        "tokens": num_steps * config.tokens_per_step,
        "validation_loss": evaluation.loss,
        "bits_per_byte": evaluation.bits_per_byte,
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


def _cosine(step: int, num_steps: int, least: float = 0.1) -> float:
    warmup = min(150, num_steps // 4)
    if step <= warmup:
        return step / max(1, warmup)
    progress = (step - warmup) / max(1, num_steps - warmup)
    return least + (1 - least) * 0.5 * (1 + math.cos(math.pi * progress))


def _describe(result: Json) -> str:
    return (
        f"{result['entry']}, seed {result['seed']}: loss {result['validation_loss']:.4f}, "
        f"{result['bits_per_byte']:.4f} bits per byte, {result['tokens'] / 1e6:.0f}M tokens, "
        f"{result['parameters'] / 1e6:.1f}M parameters, {result['lines']:,} lines, "
        f"{result['process_seconds']:.0f} s in all"
    )


def _table(results: list[Json]) -> str:
    """A line per entry over its seeds, the lowest loss first, with the probability of so large a
    difference from the first by chance."""
    groups: dict[str, list[float]] = {}
    for result in results:
        groups.setdefault(result["entry"], []).append(result["validation_loss"])
    sizes = {one["entry"]: one["lines"] for one in results}
    means = {name: statistics.fmean(losses) for name, losses in groups.items()}
    # NaN losses come last.
    order = sorted(groups, key=lambda name: (math.isnan(means[name]), means[name]))
    lines = []
    for name in order:
        loss = confidence_interval(groups[name])
        if loss is None:
            lines.append(f"{name:40} diverged")
            continue
        spread = "(one seed)" if loss.half_width is None else f"± {loss.half_width:.4f}"
        bits = statistics.fmean(one["bits_per_byte"] for one in results if one["entry"] == name)
        p = "" if name == order[0] else f", p {_p_value(groups[order[0]], groups[name]):.3f}"
        size = f"{sizes[name]:,} lines"
        lines.append(f"{name:40} {loss.mean:.4f} {spread}, {bits:.4f} bits per byte, {size}{p}")
    return "\n".join(lines)


def _p_value(ours: list[float], theirs: list[float]) -> float:
    """The exact permutation test: of all ways to divide the losses into two such groups, the
    fraction whose means are at least as far apart."""
    losses = [*ours, *theirs]
    apart = [
        abs(sum(group) / len(ours) - (sum(losses) - sum(group)) / len(theirs))
        for group in itertools.combinations(losses, len(ours))
    ]
    # The first combination is the observed one.
    return sum(one >= apart[0] - 1e-12 for one in apart) / len(apart)


if __name__ == "__main__":
    sys.exit(main())
