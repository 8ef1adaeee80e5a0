"""One optimizer step (forward, backward, clipping, AdamW): ours and its rivals.

Ours is the step of `groundup train`. Rivals with our architecture start with our weights: in a
small float32 model, loss and gradients must equal ours, and approximately in the first timed step.
The rivals are in `train_peers`.
"""

from __future__ import annotations

import contextlib
import functools
import json
import math
import os
import sys
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

import train_peers as peers
from corpora import Corpora
from groundup.data.batches.loader import Batch
from groundup.model import ModelConfig, TransformerLM
from groundup.optim import OptimizerConfig, ScheduleConfig
from groundup.planner import peak_flops_per_second, training_flops_per_token
from groundup.runs.config import RunConfig
from groundup.runtime import num_cores, set_seed
from groundup.training.clock import Tick
from groundup.training.machine import Machine, switches
from groundup.training.resolve import resolve
from groundup.training.state import build_state
from groundup.training.step import QueuedStep
from groundup.training.step import Step as TrainingStep
from machine import PeakMemory, timed, timed_again, timed_on_cuda
from measure import OURS, Benchmark, Json, Measure, Task, Verdict, main
from shapes import S1, S2, S3, SMALL, shape

_FLOAT8 = f"{OURS}, float8"
_RIVALS = {
    "cpu": ("torch", "torch, compiled", "gpt", "gpt, compiled"),
    "cuda": ("torch, compiled", "gpt, compiled", _FLOAT8),
}


# Shapes and their batch sizes.
_RUNS = {
    "cpu": (("cpu-small", SMALL, 32), ("S1", S1, 8)),
    "cuda": (("S1", S1, 512), ("S2", S2, 64), ("S3", S3, 32)),
}
# For quick runs, and for the initial check.
_TINY = shape(64, 32, 64, 2, 2, 128)
# Warm-up steps, and timed steps.
_STEPS = {"cpu": (2, 6), "cuda": (5, 20)}
_QUICK_STEPS = (1, 2)
_CLIP_NORM = 1.0
_LEARNING_RATE = 3e-4

# Tolerances: absolute for losses, relative for gradient norms. With equal weights in float32, only
# rounding differs; at full size there is also half precision.
_TOLERANCES = {"checked": (1e-4, 1e-3), "first": (0.03, 0.1)}

StepMetrics = tuple[float, float]
# Takes a step; returns a function that waits for the loss and the gradient norm.
Step = Callable[[Tensor, Tensor], Callable[[], StepMetrics]]
MakeBatch = Callable[[], tuple[Tensor, Tensor]]


def tasks(device: str, corpora: Corpora) -> Iterator[Task]:
    for name, model, batch_size in _RUNS[device]:
        if corpora.quick:
            model, batch_size = _TINY, 16
        steps = _QUICK_STEPS if corpora.quick else _STEPS[device]
        title = (
            f"{name}: {model['num_layers']} layers of {model['d_model']:,}, vocabulary "
            f"{model['vocab_size']:,}, context {model['context_length']:,}, batch {batch_size}"
        )
        speed = Measure("speed", "", "tokens/s")
        measures = (speed, Measure("first", "first step", "s", headline=False))
        job = {"model": model, "batch_size": batch_size, "device": device, "steps": steps}
        is_cuda = device == "cuda"
        cores = num_cores() if is_cuda else 2
        yield Task(name, title, job, _RIVALS[device], measures, cores=cores)


def work(job: Json) -> Json:
    # Compilers cache their results; only the first round measures compilation.
    cache = Path(job["answer"]).with_suffix(".compiled")
    has_to_compile = not cache.exists()
    cache.mkdir(exist_ok=True)
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(cache / "triton")

    tool, config = job["tool"], ModelConfig(**job["model"])
    is_cuda = job["device"] == "cuda"
    # Done first, so that it also warms up the process.
    checked = _check(tool, job["device"])
    memory = PeakMemory()
    with (_our_step if tool in (OURS, _FLOAT8) else _peer_step)(config, job) as step:
        # Reset the peak: building the model is not part of training.
        PeakMemory()
        if is_cuda:
            torch.cuda.reset_peak_memory_stats()
        make_batch = _random_batches(config, job["batch_size"], job["device"])
        first_step = timed(lambda: step(*make_batch())())
        warm_up_steps, timed_steps = job["steps"]
        for _ in range(warm_up_steps - 1):
            step(*make_batch())
        usual = (timed_on_cuda if is_cuda else timed_again)(step, make_batch, timed_steps)
        losses = {"first_loss": first_step.result[0], "last_loss": usual.result()[0]}
    peak_bytes = torch.cuda.max_memory_allocated() if is_cuda else memory.growth_bytes()
    if job["output"]:
        figures = {"checked": checked, "first": first_step.result}
        Path(job["output"]).write_text(json.dumps(figures))
    seconds = {"speed": usual.seconds}
    if has_to_compile:
        seconds["first"] = first_step.seconds
    return {
        "seconds": seconds,
        "num_tokens": job["batch_size"] * config.context_length,
        "peak_bytes": peak_bytes,
        "extra": _costs(tool, config, job["device"]) | losses,
    }


def compare(ours: Path, theirs: Path) -> Verdict:
    """Loss and gradient norm of the small model in float32, and of the first timed step."""
    a, b = (json.loads(path.read_text()) for path in (ours, theirs))
    if b["checked"] is None:
        return Verdict(math.isfinite(b["first"][0]), "another architecture")
    words, agrees = [], True
    for name, (of_loss, of_norm) in _TOLERANCES.items():
        loss = abs(a[name][0] - b[name][0])
        norm = abs(a[name][1] / b[name][1] - 1)
        # Written so that NaN does not agree.
        agrees = agrees and loss <= of_loss and norm <= of_norm
        words.append(f"{name} loss {loss:.1e} and gradients {norm:.2%} apart")
    return Verdict(agrees, "; ".join(words))


def _our_weights(config: ModelConfig) -> dict[str, Tensor]:
    """The initial weights of `groundup train`."""
    set_seed(RunConfig().seed)
    return TransformerLM.from_config(config, device="cpu").state_dict()


def _check(tool: str, device: str) -> StepMetrics | None:
    """Loss and gradient norm of a small model in full float32; None for another architecture."""
    name = tool.partition(", ")[0]
    torch.set_float32_matmul_precision("highest")
    config = ModelConfig(**_TINY)
    shape, generator = (4, config.context_length), torch.Generator().manual_seed(1)
    ids = torch.randint(config.vocab_size, shape, generator=generator).to(device)
    weights = _our_weights(config)
    if name == OURS:
        ours = TransformerLM.from_config(config)
        ours.load_state_dict(weights)
        model: torch.nn.Module = ours
        compute_loss: peers.Loss = ours.loss
    else:
        model = peers.open_peer(name, config, weights)
        compute_loss = model
    model.to(device)
    loss = compute_loss(ids[:, :-1], ids[:, 1:])
    loss.backward()
    squares = [one.grad.square().sum() for one in model.parameters() if one.grad is not None]
    return None if name == "gpt" else (loss.item(), math.sqrt(sum(squares)))


def _random_batches(config: ModelConfig, batch_size: int, device: str) -> MakeBatch:
    generator = torch.Generator(device).manual_seed(2)
    shape = (batch_size, config.context_length + 1)

    def make_batch() -> tuple[Tensor, Tensor]:
        ids = torch.randint(config.vocab_size, shape, generator=generator, device=device)
        return ids[:, :-1].contiguous(), ids[:, 1:].contiguous()

    return make_batch


@contextlib.contextmanager
def _our_step(model: ModelConfig, job: Json) -> Iterator[Step]:
    """The step of the `groundup train` loop with its defaults."""
    run = resolve(
        RunConfig(
            device=job["device"],
            precision="float8" if job["tool"] == _FLOAT8 else "auto",
            batch_size=job["batch_size"],
            max_grad_norm=_CLIP_NORM,
            num_threads=job["cores"],
            model=model,
            optimizer=OptimizerConfig(learning_rate=_LEARNING_RATE),
            schedule=ScheduleConfig(name="constant"),
        ),
        Machine.detect(job["device"]),
    )
    config = run.config
    queued: list[QueuedStep] = []

    def step(inputs: Tensor, targets: Tensor) -> Callable[[], StepMetrics]:
        batch = Batch(state.step, inputs, targets, config.micro_batch)
        state.step += 1
        launched = take_step(batch, Tick(state.step, state.step - 1, 1, 10**6, False, 0))
        # With a queue, a step's results are read after the next one is queued; otherwise at once.
        queued.append(launched)
        if len(queued) > 1 or job["device"] != "cuda":
            queued.pop(0).read()
        return lambda: (launched.read().loss, launched.read().gradient_norm)

    with switches(config):
        state = build_state(run)
        take_step = TrainingStep(config, state)
        yield step


@contextlib.contextmanager
def _peer_step(config: ModelConfig, job: Json) -> Iterator[Step]:
    tool = job["tool"]
    torch.set_float32_matmul_precision("high")
    torch.set_num_threads(job["cores"])
    model = peers.open_peer(tool, config, _our_weights(config)).to(job["device"])
    compute_loss = torch.compile(model) if tool.endswith("compiled") else model
    optimizer = peers.fused_adamw(model, _LEARNING_RATE)

    def step(inputs: Tensor, targets: Tensor) -> Callable[[], StepMetrics]:
        loss, norm = peers.take_step(compute_loss, optimizer, _CLIP_NORM, (inputs, targets))
        return lambda: (loss.item(), norm.item())

    yield step


def _costs(tool: str, config: ModelConfig, device: str) -> Json:
    """The inputs of MFU: FLOPs per token and, if known, the device's peak."""
    counted = peers.gpt_form(config) if tool.startswith("gpt") else config
    costs: Json = {"flops_per_token": training_flops_per_token(counted)}
    if device == "cuda":
        name = torch.cuda.get_device_name()
        costs["peak_flops_per_second"] = peak_flops_per_second(name, "bfloat16")
    return costs


def on_device(device: str) -> Benchmark:
    warm_up_steps, timed_steps = _STEPS[device]
    precision = "float32" if device == "cpu" else "bfloat16 by autocast on float32 weights"
    conditions = (
        f"random ids, {precision}, medians of {timed_steps} steps after {warm_up_steps}; torch is "
        "our architecture in plain torch, gpt that of GPT-2 (LayerNorm, learned positions, GELU, "
        "tied output), each with torch's fused AdamW"
    )
    if device == "cuda":
        conditions += "; float8 is ours with most matmuls in 8 bits, in MFU of bfloat16's peak"
    return Benchmark(
        f"train_step_{device}",
        "One optimizer step: forward, backward, clipping, AdamW",
        functools.partial(tasks, device),
        work,
        compare,
        conditions=conditions,
        rounds=1 if device == "cuda" else 3,
    )


if __name__ == "__main__":
    sys.exit(main(replace(on_device("cpu"), on_device=on_device), __file__))
