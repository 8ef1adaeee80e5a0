"""Program: ranks communicate, sum gradients, fail, die and hang."""

import os
import re
import signal
import time
from collections.abc import Callable

import pytest
import torch
from forked_ranks import run_ranks
from torch import Tensor, nn

from groundup.distributed.process_group import ONE_PROCESS, LostRankError, ProcessGroup
from groundup.distributed.reduction import ExactReduction
from groundup.errors import ConfigError, GroundupError

NUM_LEAVES = 12


def leaf_values(number: int) -> list[Tensor]:
    """Numbers of very different magnitudes, so that every order of summation rounds differently."""
    generator = torch.Generator().manual_seed(number)
    sizes = torch.tensor(10.0) ** torch.randint(-4, 5, (2, 33), generator=generator)
    return [torch.randn(2, 33, generator=generator) * sizes, torch.randn(5, generator=generator)]


def reduce_leaves(ranks: ProcessGroup) -> list[str]:
    """Sum the loss and gradients of this rank's micro-batches; returns all sums in hex."""
    parameters = [nn.Parameter(torch.zeros(2, 33)), nn.Parameter(torch.zeros(5))]
    num_own = NUM_LEAVES // ranks.size

    def backward(index: int) -> Tensor:
        values = leaf_values(ranks.rank * num_own + index)
        pairs = zip(parameters, values, strict=True)
        loss = torch.stack([((one + 1) * value).sum() for one, value in pairs]).sum()
        loss.backward()
        return loss.detach()

    loss = ExactReduction(ranks).sum_gradients(parameters, num_own, backward)
    sums = [loss, *(one.grad for one in parameters if one.grad is not None)]
    return [float(value).hex() for one in sums for value in one.flatten()]


def tell(ranks: ProcessGroup) -> bool:
    """Collectives, and an error on one rank, before the others gather or at the end of a block."""
    ranks.check_same({"torch": 1})
    with pytest.raises(ConfigError, match=r"^rank 2 and rank 0 differ in data$"):
        ranks.check_same({"torch": 1, "data": ranks.rank // 2})
    assert ranks.gather(f"from {ranks.rank}") == ["from 0", "from 1", "from 2"]
    assert ranks.broadcast(f"I am {ranks.rank}") == "I am 0"
    assert ranks.all_reduce_max(10 * ranks.rank, -ranks.rank)() == [20, 0]
    for failing, text in ((2, "there is no room"), (1, "too late")):
        message = text if ranks.rank == failing else f"rank {failing}: {text}"
        with pytest.raises((GroundupError, ValueError), match=f"^{message}$"), ranks.barrier():
            if ranks.rank == failing == 2:
                raise ConfigError(text)
            ranks.gather(ranks.rank)
            if ranks.rank == failing:
                raise ValueError(text)
    return True


def wait_in_vain(ranks: ProcessGroup, leave: Callable[[], object]) -> str:
    """Rank 1 leaves; return the error that the other rank gets."""
    ranks.gather(None)
    if ranks.rank == 1:
        leave()
        return ""
    with pytest.raises(LostRankError) as caught:
        ranks.gather(None)
    return str(caught.value)


if __name__ == "__main__":
    alone = reduce_leaves(ONE_PROCESS)
    for size in (2, 3, 4, 6):
        assert run_ranks(reduce_leaves, size) == [alone] * size
    assert run_ranks(tell, 3) == [True] * 3
    kill = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    died = run_ranks(lambda ranks: wait_in_vain(ranks, kill), 2)
    hung = run_ranks(lambda ranks: wait_in_vain(ranks, lambda: time.sleep(7)), 2, 0.07)
    assert died[1] is None
    assert all(re.search("a rank died.*--resume", message) for message in (died[0], hung[0]))
