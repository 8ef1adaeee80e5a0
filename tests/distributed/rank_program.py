"""Forks ranks that do what tests ask of them; what each of them gives goes into a file."""

import json
import os
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from forked_ranks import fork_ranks
from torch import Tensor, nn

from groundup.distributed.process_group import (
    ONE_PROCESS,
    ProcessGroup,
    find_process_group,
    open_process_group,
)
from groundup.distributed.reduction import ExactReduction
from groundup.errors import ConfigError, GroundupError

NUM_LEAVES = 12


def run_ranks(measure: Callable[[ProcessGroup], Any], size: int, minutes: float = 1.0) -> list[Any]:
    """What `measure` gives on each of `size` ranks; None of one that died."""

    def measure_in_world(_: int) -> Any:
        with open_process_group(find_process_group(), "cpu", minutes) as ranks:
            return measure(ranks)

    return fork_ranks(measure_in_world, size)


def leaf_values(number: int) -> list[Tensor]:
    """Numbers of very different sizes, so that every order of adding rounds differently."""
    generator = torch.Generator().manual_seed(number)
    sizes = torch.tensor(10.0) ** torch.randint(-4, 5, (2, 33), generator=generator)
    return [torch.randn(2, 33, generator=generator) * sizes, torch.randn(5, generator=generator)]


def reduce_leaves(ranks: ProcessGroup) -> list[str]:
    """The loss and the gradients of the micro-batches, a part of which this rank has, in hex."""
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


def tell(ranks: ProcessGroup) -> Any:
    """What ranks hear from each other."""
    errors = []
    for facts in ({"torch": 1}, {"torch": 1, "data": ranks.rank // 2}):
        try:
            ranks.check_same(facts)
        except ConfigError as error:
            errors.append(str(error))
    first = ranks.broadcast(f"I am {ranks.rank}")
    maxima = ranks.all_reduce_max(10 * ranks.rank, -ranks.rank)
    return [ranks.gather(f"from {ranks.rank}"), first, maxima(), errors]


def fail_on_one(ranks: ProcessGroup) -> list[str]:
    """Before the others gather, and at the end of a block."""
    errors = []
    for is_early in (True, False):
        try:
            with ranks.barrier():
                if is_early and ranks.rank == 2:
                    raise ConfigError("there is no room")
                ranks.gather(ranks.rank)
                if not is_early and ranks.rank == 1:
                    raise ValueError("too late")
        except (GroundupError, ValueError) as error:
            errors.append(str(error))
    return errors


def wait_in_vain(ranks: ProcessGroup, leave: Callable[[], Any]) -> str:
    """Rank 1 leaves; what the others are told."""
    ranks.gather(None)
    if ranks.rank == 1:
        leave()
        return ""
    try:
        ranks.gather(None)
    except GroundupError as error:
        return str(error)
    return "nothing happened"


def main(out: Path) -> None:
    torch.set_num_threads(1)
    sums = {size: run_ranks(reduce_leaves, size) for size in (2, 3, 4, 6)}
    told, failed = zip(*run_ranks(lambda ranks: [tell(ranks), fail_on_one(ranks)], 3), strict=True)
    kill = lambda: os.kill(os.getpid(), signal.SIGKILL)  # noqa: E731
    results = {
        "alone": reduce_leaves(ONE_PROCESS),
        "sums": sums,
        "told": told,
        "failed": failed,
        "died": run_ranks(lambda ranks: wait_in_vain(ranks, kill), 2),
        "hung": run_ranks(lambda ranks: wait_in_vain(ranks, lambda: time.sleep(7)), 2, 0.07),
    }
    out.write_text(json.dumps(results))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
