"""The peak of a step against measured ones, and the micro-batch that follows from it."""

import json
from pathlib import Path
from typing import Any

import pytest

from groundup.errors import ConfigError
from groundup.model.config import PRESETS, ModelConfig
from groundup.planner import Execution, StepKind, training_memory
from groundup.planner.activations import textbook_memory
from groundup.planner.flops import OptimizerName
from groundup.planner.memory import pick_micro_batch

H200 = Execution("cuda", "bfloat16")
IN_ORDER = StepKind(adds_in_tree=False)
CPU = Execution("cpu", "float32")


def shape(*sizes: int) -> ModelConfig:
    names = ("vocab_size", "context_length", "d_model", "num_layers", "num_heads", "d_ff")
    return ModelConfig(**dict(zip(names, sizes, strict=True)))


MEASURED = {
    "S1": (shape(10_000, 256, 512, 4, 16, 1_344), 512),
    "S2": (shape(50_304, 1_024, 768, 12, 12, 2_048), 64),
    "S3": (shape(50_304, 1_024, 1_024, 24, 16, 2_752), 32),
}


@pytest.mark.parametrize("name", MEASURED)
def test_the_peak_on_an_h200_is_the_measured_one(name: str, repository: Path) -> None:
    results = json.loads(
        (repository / "benchmarks/results/train_step_cuda_x86_64.json").read_text()
    )
    (measured,) = (
        one["tools"]["groundup"]["peak_bytes"]
        for one in results["rows"]
        if one["name"] == f"{name}.speed"
    )
    config, batch_size = MEASURED[name]
    predicted = training_memory(config, H200).bytes_at(batch_size)
    assert predicted == pytest.approx(measured, rel=0.05)


WEB = {
    "vocab_size": 16_384,
    "context_length": 256,
    "d_model": 512,
    "num_layers": 4,
    "num_heads": 16,
    "d_ff": 1_344,
}
WIDE = {"context_length": 512, "d_model": 1_024, "num_layers": 16, "d_ff": 2_752}

# Settings, batch, optimizer, and the peak in bytes that whole runs on an H200 wrote into their
# metrics: docs/experiments.
WHOLE_RUNS: dict[str, tuple[dict[str, Any], int, OptimizerName, int]] = {
    "1": ({}, 1, "adamw", 603_200_000),
    "4": ({}, 4, "adamw", 632_200_000),
    "16": ({}, 16, "adamw", 945_900_000),
    "64": ({}, 64, "adamw", 2_187_500_000),
    "256": ({}, 256, "adamw", 7_163_000_000),
    "1024": ({}, 1_024, "adamw", 20_625_200_000),
    "7168": ({}, 7_168, "adamw", 132_225_200_000),
    "muon": ({}, 128, "muon", 3_794_800_000),
    "wide": (WIDE, 64, "muon", 23_388_300_000),
    "no-norm": ({"norm": "none"}, 128, "adamw", 3_761_200_000),
    "post-norm": ({"norm": "post"}, 128, "adamw", 3_811_400_000),
    "no-positions": ({"positions": "none"}, 128, "adamw", 3_845_000_000),
    "silu": ({"feed_forward": "silu", "d_ff": 2_016}, 128, "adamw", 3_862_000_000),
    "tied": ({"tie_embeddings": True, "d_ff": 2_712}, 128, "adamw", 4_944_000_000),
    "qk-norm": ({"qk_norm": True}, 128, "adamw", 4_264_600_000),
}


@pytest.mark.parametrize("name", WHOLE_RUNS)
def test_the_peak_of_whole_runs_on_an_h200_is_the_measured_one(name: str) -> None:
    changes, batch_size, optimizer, measured = WHOLE_RUNS[name]
    config = ModelConfig(**(WEB | changes))
    predicted = training_memory(config, H200, optimizer, 150_109_880_320).bytes_at(batch_size)
    # Without norms an evaluation takes more than a step.
    tolerance = 0.07 if name == "no-norm" else 0.05
    assert predicted == pytest.approx(measured, rel=tolerance)


@pytest.mark.parametrize("execution", [CPU, H200], ids=str)
@pytest.mark.parametrize("name", PRESETS)
def test_memory_grows_with_the_micro_batch(name: str, execution: Execution) -> None:
    memory = training_memory(PRESETS[name], execution, step=IN_ORDER)
    peaks = [memory.bytes_at(size) for size in (1, 2, 3, 8, 64)]
    assert peaks == sorted(peaks)
    assert peaks[0] > memory.state_bytes
    assert memory.bytes_at(2, 4) == memory.bytes_at(2, 2) >= memory.bytes_at(2)


@pytest.mark.parametrize("memory_bytes", [2 * 10**9, 24 * 2**30, 141 * 2**30])
def test_the_largest_micro_batch_fits_and_one_more_does_not(memory_bytes: int) -> None:
    memory = training_memory(PRESETS["tinystories"], CPU, step=IN_ORDER)
    largest = memory.largest_micro_batch(memory_bytes)
    usable = memory_bytes - memory.process_bytes
    assert memory.bytes_at(largest) <= usable < memory.bytes_at(largest + 1)


def test_a_micro_batch_cuts_the_batch_evenly() -> None:
    memory = training_memory(PRESETS["tinystories"], CPU, step=IN_ORDER)
    process = memory.process_bytes
    assert memory.largest_divisor(30, process + memory.bytes_at(30)) == 30
    assert memory.largest_divisor(30, process + memory.bytes_at(13, 2)) == 10
    assert memory.largest_divisor(30, 1_000) == 0


def test_a_run_on_a_cpu_takes_no_more_at_once_than_half_its_memory_or_than_keeps_it_busy() -> None:
    memory = training_memory(PRESETS["tinystories"], CPU, step=IN_ORDER)
    batch_size, gigabyte = 1 << 16, 1 << 30
    chosen = [pick_micro_batch(memory, batch_size, half * gigabyte // 2) for half in range(2, 64)]
    # 16 sequences are 4,096 tokens.
    assert sorted(chosen) == chosen and chosen[0] < 16 and 16 in chosen
    huge = pick_micro_batch(memory, batch_size, 24 * gigabyte)
    assert huge > 16 and memory.fits(huge, 12 * gigabyte, batch_size // huge)
    assert not memory.fits(2 * huge, 12 * gigabyte, batch_size // huge // 2)
    assert pick_micro_batch(memory, 8, 24 * gigabyte) == 8


def test_in_the_tree_the_largest_micro_batch_that_fits_is_taken() -> None:
    """One sum of every level waits, so that smaller micro-batches may take more memory."""
    memory = training_memory(PRESETS["tinystories"], CPU, step=StepKind(adds_in_tree=True))
    peaks = {size: memory.bytes_at(size, 24 // size) for size in (1, 2, 3, 4, 6, 8, 12, 24)}
    assert peaks[1] > peaks[2]
    assert peaks[24] == training_memory(PRESETS["tinystories"], CPU, step=IN_ORDER).bytes_at(24)
    for needed in peaks.values():
        found = memory.largest_divisor(24, memory.process_bytes + needed)
        assert found == max(size for size, peak in peaks.items() if peak <= needed)


@pytest.mark.parametrize("execution", [CPU, H200], ids=str)
def test_recomputing_keeps_the_inputs_of_blocks_alone(execution: Execution) -> None:
    config = PRESETS["gpt2-small"]
    usual, less = (
        training_memory(config, execution, step=StepKind(recompute=recompute))
        for recompute in (False, True)
    )
    inputs = config.num_layers * config.context_length * config.d_model * execution.value_bytes
    assert less.activations_per_sequence["residual"] == inputs
    assert less.bytes_per_sequence < usual.bytes_per_sequence / 4
    for size in (1, 4, 32):
        assert less.bytes_at(size) < usual.bytes_at(size)


def test_what_does_not_fit_at_all_is_an_error_with_both_figures() -> None:
    memory = training_memory(PRESETS["gpt2-xl"], CPU)
    least = memory.bytes_at(1)
    told = f"takes {least:,} bytes for one sequence of 1024 tokens, and .* use {least - 1:,}:"
    with pytest.raises(ConfigError, match=told):
        pick_micro_batch(memory, 8, least - 1 + memory.process_bytes)
    assert pick_micro_batch(memory, 8, 10**12) == 8


def test_bfloat16_takes_less_for_activations_and_as_much_for_state() -> None:
    config = PRESETS["gpt2-small"]
    wide, narrow = (training_memory(config, Execution("cuda", p)) for p in ("float32", "bfloat16"))
    assert narrow.bytes_per_sequence < 0.6 * wide.bytes_per_sequence
    assert narrow.state_bytes == wide.state_bytes


def test_muon_needs_less_state_and_more_at_the_update() -> None:
    config = PRESETS["gpt2-small"]
    adamw, muon = (training_memory(config, CPU, name) for name in ("adamw", "muon"))
    assert muon.optimizer_state < adamw.optimizer_state
    assert muon.moments(1)["update"] > adamw.moments(1)["update"]


def test_textbook_memory_of_gpt2_xl_is_a_line_whose_largest_batch_in_80_gb_is_2() -> None:
    memory = textbook_memory(PRESETS["gpt2-xl"])
    assert memory.fixed_bytes == 16 * 2_127_057_600 == 34_032_921_600
    # A token keeps in each block 8 vectors, 25 heads' scores twice and 4 inner vectors.
    per_block = 8 * 1_600 + 2 * 25 * 1_024 + 4 * 6_400
    per_token = 48 * per_block + 1_600 + 2 * 50_257
    assert memory.bytes_per_sequence == 4 * 1_024 * per_token == 18_034_335_744
    assert memory.bytes_at(3) == 3 * 18_034_335_744 + 34_032_921_600
    assert memory.largest_batch(80 * 10**9) == memory.largest_batch(80 * 2**30) == 2
    assert memory.largest_batch(30 * 10**9) == 0


def test_float8_holds_its_copies_of_the_output_layer_and_of_a_chunk_of_logits() -> None:
    execution = Execution.of("cuda", "float8")
    assert execution == Execution.of("cuda", "bfloat16")
    kinds = StepKind.of({"precision": "bfloat16"}), StepKind.of({"precision": "float8"})
    config = PRESETS["tinystories"]
    plain, rounded = (training_memory(config, execution, step=kind) for kind in kinds)
    tokens = 512 * config.context_length
    of_layer = (2 * config.vocab_size + tokens) * config.d_model
    assert rounded._chunk(tokens) == 1.5 * plain._chunk(tokens) + of_layer


def test_a_model_compiled_as_one_has_the_gradients_of_two_micro_batches_at_once() -> None:
    kinds = [StepKind.of({"compile": mode}) for mode in ("blocks", "model")]
    config, execution = PRESETS["tinystories"], Execution.of("cuda", "bfloat16")
    blocks, model = (training_memory(config, execution, step=kind) for kind in kinds)
    assert model.moments(8) == blocks.moments(8)
    of_two = [memory.moments(8, 2)["last_block_backward"] for memory in (blocks, model)]
    assert of_two[1] == of_two[0] + model.gradients
