"""Process groups: sums that do not depend on the world size, collectives, and failing ranks."""

import functools
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, distributed, nn

from groundup.distributed.process_group import (
    ONE_PROCESS,
    LostRankError,
    ProcessGroup,
    find_process_group,
    lost_rank_errors,
)
from groundup.distributed.reduction import ExactReduction
from groundup.errors import ConfigError

VARIABLES = {"RANK": "2", "WORLD_SIZE": "4", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "2"}
VARIABLES |= {"MASTER_ADDR": "here", "MASTER_PORT": "1"}


# Collectives and lost ranks; and two ranks that match a single process.
@pytest.mark.parametrize("program", ["rank_program.py", "sharding_program.py"])
def test_ranks_match_a_single_process(run_program: Any, program: str) -> None:
    run_program(Path(__file__).with_name(program))


def tree_by_hand(values: list[Tensor]) -> Tensor:
    if len(values) == 1:
        return values[0]
    middle = len(values) // 2
    return tree_by_hand(values[:middle]) + tree_by_hand(values[middle:])


@given(st.integers(1, 40))
def test_gradients_are_summed_in_a_tree(num_micro_batches: int) -> None:
    learning, unused = nn.Parameter(torch.zeros(50)), nn.Parameter(torch.zeros(3))
    frozen = nn.Parameter(torch.zeros(4), requires_grad=False)
    generator = torch.Generator().manual_seed(num_micro_batches)
    leaves = list(torch.randn(num_micro_batches, 50, generator=generator) ** 5)

    def backward(index: int) -> Tensor:
        loss = ((learning + 1) * leaves[index]).sum()
        loss.backward()
        return loss.detach()

    reduction = ExactReduction()
    loss = reduction.sum_gradients([learning, unused, frozen], num_micro_batches, backward)
    assert learning.grad is not None and unused.grad is not None and frozen.grad is None
    assert torch.equal(learning.grad, tree_by_hand(leaves))
    assert torch.equal(loss, tree_by_hand([leaf.sum() for leaf in leaves]))
    assert not unused.grad.any()
    if num_micro_batches > 8:
        assert not torch.equal(learning.grad, functools.reduce(torch.add, leaves))


def test_rank_and_world_size_come_from_torchrun() -> None:
    assert find_process_group({}) == ONE_PROCESS
    assert (
        ONE_PROCESS.gather("it") == ["it"]
        and ONE_PROCESS.broadcast(3) == 3
        and ONE_PROCESS.all_reduce_max(2)() == [2]
    )
    with pytest.raises(ConfigError, match="here"), ONE_PROCESS.barrier():
        raise ConfigError("here")
    assert find_process_group(VARIABLES) == ProcessGroup(2, 4, 0, 2)
    without = {name: value for name, value in VARIABLES.items() if name != "RANK"}
    with pytest.raises(ConfigError, match="RANK is not set"):
        find_process_group(without)


def test_only_backend_errors_become_lost_ranks() -> None:
    def meet(error: Exception) -> None:
        with lost_rank_errors():
            raise error

    for text in ("a timeout of the peer connection", "CUDA error: an illegal memory access"):
        with pytest.raises(RuntimeError, match=text) as caught:
            meet(RuntimeError(text))
        assert type(caught.value) is RuntimeError
    gone = RuntimeError("[/x/gloo/transport/tcp/pair.cc:534] Connection closed. See\nthis stack")
    for error, text in (gone, "Connection closed"), (distributed.DistBackendError("NCCL"), "NCCL"):
        with pytest.raises(LostRankError, match=rf"a rank died.* in time \({text}\); see"):
            meet(error)
