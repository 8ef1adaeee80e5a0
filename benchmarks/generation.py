"""Generation: new tokens per second, sampled with top-p, one text and 64 at once.

Ours is the engine of `groundup generate`. The peers, which have our architecture and our weights,
are in `generation_peers`. Greedy ids of a small model in float32 must be equal first. If the
device's memory bandwidth is known, the result includes the fraction used.
"""

from __future__ import annotations

import functools
import json
import math
import os
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

import generation_peers as peers
import train_peers
from corpora import Corpora
from groundup.generation import Engine, GenerationRequest, Sampler
from groundup.model import ModelConfig, TransformerLM
from groundup.planner import count_parameters
from groundup.runtime import keep_freed_memory, num_cores, set_seed
from machine import PeakMemory, Timing, peak_bytes_per_second, timed
from measure import OURS, Benchmark, Json, Measure, Task, Verdict, main
from shapes import S1, S2, shape

_RIVALS = (peers.DYNAMIC, peers.COMPILED)
_TOP_P = 0.9
_NUM_PROMPT_IDS = 16
# Standard deviation of the logits of a trained model; those of random weights are almost equal,
# which is not realistic for sampling.
_LOGIT_DEVIATION = 3.0


# Shapes, and new ids by batch size.
_WHOLE = {1: 200, 64: 200}
_RUNS = {
    "cpu": (("S1", S1, {1: 200, 64: 48}), ("S2", S2, {1: 48, 64: 8})),
    "cuda": (("S1", S1, _WHOLE), ("S2", S2, _WHOLE)),
}
_TINY = shape(64, 64, 64, 2, 2, 128)
_QUICK = {1: 6, 64: 3}
# Maximum number of runs per median, and the seconds after which no more runs start.
_MAX_RUNS = {"cpu": 1, "cuda": 5}
_MAX_SECONDS = 4.0


def tasks(device: str, corpora: Corpora) -> Iterator[Task]:
    for name, model, num_new_ids in _RUNS[device]:
        if corpora.quick:
            model, num_new_ids = _TINY, _QUICK
        layers, width, size = (model[key] for key in ("num_layers", "d_model", "vocab_size"))
        title = f"{name}: {layers} layers of {width:,}, vocabulary {size:,}"
        measures = tuple(
            Measure(f"batch_{batch_size}", f"batch {batch_size}", "tokens/s")
            for batch_size in num_new_ids
        )
        # String keys, as in JSON.
        by_text = {str(key): value for key, value in num_new_ids.items()}
        job: Json = {"model": model, "device": device, "num_new_ids": by_text}
        job["is_compiled"] = device == "cuda" or not corpora.quick
        cores = num_cores() if device == "cuda" else 2
        yield Task(name, title, job, _RIVALS, measures, cores=cores)


def work(job: Json) -> Json:
    cache = Path(job["answer"]).with_suffix(".compiled")
    os.environ["TORCHINDUCTOR_CACHE_DIR"] = str(cache / "inductor")
    os.environ["TRITON_CACHE_DIR"] = str(cache / "triton")
    tool, device, config = job["tool"], job["device"], ModelConfig(**job["model"])
    is_compiled = job["is_compiled"]
    torch.set_num_threads(job["cores"])
    if device == "cpu":
        keep_freed_memory()
    if job["output"]:
        Path(job["output"]).write_text(json.dumps(_greedy_ids(tool, device, is_compiled)))
    memory = PeakMemory()
    dtype = torch.float32 if device == "cpu" else torch.bfloat16
    write = _writer(tool, config, device, dtype, is_compiled=is_compiled)
    seconds = {}
    for name, num_new_ids in job["num_new_ids"].items():
        batch_size = int(name)
        prompts = _prompts(config, batch_size).to(device)
        usual = _repeated(functools.partial(write, prompts, num_new_ids), device)
        assert usual.result.shape == (batch_size, num_new_ids), usual.result.shape
        seconds[f"batch_{name}"] = usual.seconds / (batch_size * num_new_ids)
    is_cuda = device == "cuda"
    peak_bytes = torch.cuda.max_memory_allocated() if is_cuda else memory.growth_bytes()
    # Seconds per token.
    return {
        "seconds": seconds,
        "num_tokens": 1,
        "peak_bytes": peak_bytes,
        "extra": {
            "bytes_per_token": {
                f"batch_{name}": bytes_per_step(config, int(name), number, dtype) / int(name)
                for name, number in job["num_new_ids"].items()
            },
            "peak_bytes_per_second": peak_bytes_per_second(device),
        },
    }


def bytes_per_step(
    config: ModelConfig, batch_size: int, num_new_ids: int, dtype: torch.dtype
) -> float:
    """The bytes that a step must read: all weights except the embeddings of other ids, and the keys
    and values of all sequences at their mean length."""
    parameters = count_parameters(config)
    skipped = 0 if config.tie_embeddings else parameters["token_embedding"]
    num_weights = sum(parameters.values()) - skipped
    mean_length = _NUM_PROMPT_IDS + (num_new_ids - 1) / 2
    cached = 2 * config.num_layers * config.key_value_heads * config.d_head * mean_length
    return dtype.itemsize * (num_weights + batch_size * (config.d_model + cached))


def compare(ours: Path, theirs: Path) -> Verdict:
    """Greedy ids of the small model."""
    a, b = (json.loads(path.read_text()) for path in (ours, theirs))
    pairs = [
        (x, y) for row, other in zip(a, b, strict=True) for x, y in zip(row, other, strict=True)
    ]
    num_equal = sum(x == y for x, y in pairs)
    return Verdict(a == b, f"{num_equal} of {len(pairs)} greedy ids equal")


def _repeated(call: Callable[[], Tensor], device: str) -> Timing:
    """The median of several runs after one warm-up run."""
    call()
    begun = time.perf_counter()
    timings: list[Timing] = []
    while not timings or (
        len(timings) < _MAX_RUNS[device] and time.perf_counter() - begun < _MAX_SECONDS
    ):
        # Copying the ids to the host waits for the device.
        timings.append(timed(lambda: call().cpu()))
    return Timing(timings[-1].result, statistics.median(timing.seconds for timing in timings))


def _prompts(config: ModelConfig, batch_size: int) -> Tensor:
    shape, generator = (batch_size, _NUM_PROMPT_IDS), torch.Generator().manual_seed(1)
    return torch.randint(config.vocab_size, shape, generator=generator)


def _weights(config: ModelConfig) -> dict[str, Tensor]:
    """Random weights with the logits' standard deviation of a trained model."""
    set_seed(0)
    weights = TransformerLM.from_config(config, device="cpu").state_dict()
    deviation = math.sqrt(2 * config.d_model / (config.d_model + config.vocab_size))
    return weights | {"lm_head.weight": weights["lm_head.weight"] * _LOGIT_DEVIATION / deviation}


def _greedy_ids(tool: str, device: str, is_compiled: bool) -> list[list[int]]:
    torch.set_float32_matmul_precision("highest")
    config = ModelConfig(**_TINY)
    write = _writer(tool, config, device, torch.float32, is_greedy=True, is_compiled=is_compiled)
    ids: list[list[int]] = write(_prompts(config, 3).to(device), 20).tolist()
    return ids


def _writer(
    tool: str,
    config: ModelConfig,
    device: str,
    dtype: torch.dtype,
    *,
    is_greedy: bool = False,
    is_compiled: bool,
) -> peers.Write:
    weights = _weights(config)
    if tool != OURS:
        model = train_peers.open_peer(tool, config, weights).to(device, dtype).eval()
        top_p = None if is_greedy else _TOP_P
        return peers.open_writer(tool, model, config, top_p, is_compiled=is_compiled)
    ours = TransformerLM.from_config(config)
    ours.load_state_dict(weights)
    return _our_writer(ours.to(device, dtype).eval(), is_greedy)


def _our_writer(model: TransformerLM, is_greedy: bool) -> peers.Write:
    sampler = Sampler(temperature=0) if is_greedy else Sampler(top_p=_TOP_P)
    engines: dict[int, Engine] = {}

    def write(prompts: Tensor, num_new_ids: int) -> Tensor:
        if len(prompts) not in engines:
            engines[len(prompts)] = Engine(model, len(prompts))
        engine = engines[len(prompts)]
        handles = [
            engine.add(GenerationRequest(tuple(ids), num_new_ids, sampler, seed))
            for seed, ids in enumerate(prompts.tolist())
        ]
        written = np.empty((num_new_ids, len(handles)), np.int64)
        for ids in written:
            new = dict(engine.step())
            ids[:] = [new[handle].id for handle in handles]
        return torch.from_numpy(written.T)

    return write


def on_device(device: str) -> Benchmark:
    precision = "float32" if device == "cpu" else "bfloat16"
    conditions = (
        f"{_NUM_PROMPT_IDS} random ids a prompt, top-p {_TOP_P}, {precision} weights; "
        "200 new ids a text on CUDA and fewer on a CPU; huggingface is LlamaForCausalLM.generate, "
        "torch our architecture in plain torch, in the manner of gpt-fast with "
        "a static cache and one compiled step, sampling included"
    )
    return Benchmark(
        f"generation_{device}",
        "Generation, one text and 64 at once",
        functools.partial(tasks, device),
        work,
        compare,
        conditions=conditions,
        rounds=1 if device == "cuda" else 3,
    )


if __name__ == "__main__":
    sys.exit(main(replace(on_device("cpu"), on_device=on_device), __file__))
