"""Two gloo ranks against one process, in float64: fast data parallel, FSDP2, HSDP, Muon."""

from pathlib import Path
from typing import Any

import pytest

PROGRAM = Path(__file__).with_name("sharding_program.py")
ROUNDING = 1e-14
# A loss is a float32 whatever the weights are.
ROUNDING_OF_LOSS = 1e-6


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory, run_program: Any) -> Any:
    return run_program(PROGRAM, tmp_path_factory.mktemp("sharding") / "results.json")


@pytest.mark.parametrize("case", ["adamw", "averages", "compiled", "muon", "sgd", "float32"])
def test_two_ranks_learn_what_one_process_does(measured: dict[str, Any], case: str) -> None:
    """With averages, an evaluation of them comes before the last step."""
    assert set(measured["muon"]) == {"ddp", "fsdp", "hsdp"}
    for result in measured[case].values():
        assert result["weights"] < (1e-4 if case == "float32" else ROUNDING)
        assert result["records"] < (1e-5 if case == "float32" else ROUNDING_OF_LOSS)


def test_blocks_are_compiled_inside_recomputation_and_sharding(measured: dict[str, Any]) -> None:
    assert measured["compiled"]["fsdp"]["graphs"] == 1


def test_a_shard_has_half_of_the_optimizer_state(measured: dict[str, Any]) -> None:
    whole, half = (measured["adamw"][name]["elements"] for name in ("ddp", "fsdp"))
    # Odd numbers of rows, and a count of steps for each parameter.
    assert half == pytest.approx(whole / 2, rel=0.05)


@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_each_matrix_is_orthogonalized_once_by_one_rank(
    measured: dict[str, Any], strategy: str
) -> None:
    num_steps, num_layers = 5, 3
    counts = [map(tuple, some) for some in measured["muon"][strategy]["orthogonalized"]]
    first, second = map(sorted, counts)
    expected = num_layers * (4 * [(12, 12)] + [(12, 15)] + 2 * [(15, 12)] + [(2, 12)])
    # And the projection of value embeddings.
    expected.append((12, 12))
    assert sorted(first + second) == sorted(num_steps * expected)
    # One rank may have one matrix more of each shape.
    assert abs(len(first) - len(second)) <= num_steps * len(set(expected))


def test_matrices_one_by_one_have_the_same_bits_on_any_number_of_ranks(
    measured: dict[str, Any],
) -> None:
    assert measured["same bits"]
