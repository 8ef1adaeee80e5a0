"""Rank, world size and collectives of the processes of a run, as started by torchrun.

For a single process every collective returns immediately, so callers need no special case.
"""

import contextlib
import dataclasses
import datetime
import os
import re
import socket
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import distributed
from torch.distributed import distributed_c10d
from torch.distributed.rendezvous import rendezvous

from groundup.errors import ConfigError, GroundupError

_NAMES = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


class LostRankError(GroundupError):
    """Another rank died, or did not respond in time."""


class _FailedRankError(GroundupError):
    """Sent by a rank that has raised an error, in place of a value."""


@dataclass(frozen=True)
class ProcessGroup:
    """One of `size` ranks. All ranks must call the same methods in the same order."""

    rank: int = 0
    size: int = 1
    local_rank: int = 0
    """Rank within this machine."""
    local_size: int = 1
    is_open: bool = False
    """Whether torch's process group is initialized; a single process may do without."""
    host_group: Any = None
    """The gloo group for CPU tensors and objects; None is torch's default group."""

    @property
    def is_first(self) -> bool:
        return self.rank == 0

    def gather(self, value: Any) -> list[Any]:
        """Gather the values of all ranks, in rank order, on every rank.

        If a rank has failed inside `barrier`, raises its error.
        """
        if self.size == 1:
            return [value]
        values: list[Any] = [None] * self.size
        with lost_rank_errors():
            distributed.all_gather_object(values, value, group=self.host_group)
        for rank, other in enumerate(values):
            if isinstance(other, _FailedRankError) and not isinstance(value, _FailedRankError):
                raise _FailedRankError(f"rank {rank}: {other}")
        return values

    def broadcast(self, value: Any) -> Any:
        """Return rank 0's value on every rank."""
        return self.gather(value if self.is_first else None)[0]

    def all_reduce_max(self, *numbers: int) -> Callable[[], list[int]]:
        """Start an asynchronous all-reduce (max) of each number; the function returned waits for
        the result."""
        if self.size == 1:
            return lambda: list(numbers)
        found, how = torch.tensor(numbers), distributed.ReduceOp.MAX
        with lost_rank_errors():
            request = distributed.all_reduce(found, how, group=self.host_group, async_op=True)

        def wait() -> list[int]:
            with lost_rank_errors():
                request.wait()
            return found.tolist()

        return wait

    def check_same(self, values: Mapping[str, Any]) -> None:
        """Raise ConfigError on every rank if any of the values differs between ranks."""
        first, *others = self.gather(dict(values))
        for rank, other in enumerate(others, 1):
            if different := [name for name, value in first.items() if other.get(name) != value]:
                raise ConfigError(f"rank {rank} and rank 0 differ in {' and '.join(different)}")

    @contextlib.contextmanager
    def barrier(self) -> Iterator[None]:
        """A block that ends with a barrier. If one rank fails inside it, all ranks do: the others
        raise the first failed rank's error at their next `gather` or at the end of the block.
        """
        try:
            yield
        except (LostRankError, _FailedRankError):
            raise
        except Exception as error:
            with contextlib.suppress(LostRankError):
                self.gather(_FailedRankError(str(error) or type(error).__name__))
            raise
        self.gather(None)


ONE_PROCESS = ProcessGroup()


def find_process_group(environment: Mapping[str, str] = os.environ) -> ProcessGroup:
    """Rank and world size from torchrun's environment variables; ONE_PROCESS without them."""
    if "RANK" not in environment and "WORLD_SIZE" not in environment:
        return ONE_PROCESS
    if missing := [name for name in _NAMES if name not in environment]:
        raise ConfigError(f"{missing[0]} is not set; start the ranks with torchrun, which sets it")
    rank, size, local_rank, local_size = (int(environment[name]) for name in _NAMES[:4])
    return ProcessGroup(rank, size, local_rank, local_size)


@contextlib.contextmanager
def open_process_group(
    ranks: ProcessGroup, device: str, timeout_minutes: float
) -> Iterator[ProcessGroup]:
    """Connect the ranks inside the block: CUDA ranks with NCCL, others with gloo."""
    # A single rank started by torchrun may still be configured to shard its weights.
    if ranks == ONE_PROCESS and "RANK" not in os.environ:
        yield ranks
        return
    timeout = datetime.timedelta(minutes=timeout_minutes)
    # NCCL does not support two ranks on one GPU; gloo copies through the host.
    on_gpus = device.startswith("cuda") and ranks.local_size <= torch.cuda.device_count()
    if device == "cuda":
        torch.cuda.set_device(ranks.local_rank % torch.cuda.device_count())
    try:
        store, rank, size = next(rendezvous("env://", timeout=timeout))
        if os.environ.get("GROUP_WORLD_SIZE") == "1":
            # When torchrun restarts the ranks on a single machine it keeps its store, whose old
            # entries would point them to closed ports.
            attempt = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
            store = distributed_c10d.PrefixStore(f"attempt_{attempt}", store)
        backend = "nccl" if on_gpus else "gloo"
        distributed.init_process_group(
            backend, store=store, rank=rank, world_size=size, timeout=timeout
        )
    except (RuntimeError, ValueError) as error:
        address = f"{os.environ['MASTER_ADDR']}:{os.environ['MASTER_PORT']}"
        raise GroundupError(
            f"rank {ranks.rank} on {socket.gethostname()} cannot connect to {address}, whose "
            f"port must be open and not in use: {_first_line(error)}"
        ) from error
    try:
        on_host = distributed.new_group(backend="gloo", timeout=timeout) if on_gpus else None
        yield dataclasses.replace(ranks, is_open=True, host_group=on_host)
    finally:
        # If this rank failed, the others do not take part.
        with contextlib.suppress(Exception):
            distributed.destroy_process_group()


@contextlib.contextmanager
def lost_rank_errors() -> Iterator[None]:
    """Convert the backends' exceptions for a dead or unresponsive rank into LostRankError."""
    try:
        yield
    except RuntimeError as error:
        # gloo raises plain RuntimeErrors with a location in its source.
        if not isinstance(error, distributed.DistError) and "gloo/" not in str(error):
            raise
        raise LostRankError(
            f"a rank died or did not respond in time ({_first_line(error)}); see its log next to "
            f"log.txt, and continue with --resume, or automatically with torchrun --max-restarts"
        ) from error


def _first_line(error: Exception) -> str:
    """Return the first sentence of a message, without its location in torch's source."""
    text = re.sub(r"\[\S+:\d+\] ", "", str(error).strip().partition("\n")[0])
    return text.partition(". ")[0].rstrip(".")
