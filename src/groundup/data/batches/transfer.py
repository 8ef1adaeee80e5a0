"""Copies from host memory to the device, one per batch and in order, overlapped with computation.

A sender fills a host buffer and sends it, from any thread; the receiver gets a device tensor that
is safe to use on its current stream.
"""

import torch
from torch import Tensor

# One is filled while the other is being copied.
_NUM_BUFFERS = 2


Sent = tuple[Tensor, torch.cuda.Event | None]
"""The tensor of a pending copy, and on CUDA the event that marks its end."""


class Transfer:
    """For devices without copy streams: the receiver copies, and each buffer is used once."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.shape = shape
        self.device = device

    def host_buffer(self) -> Tensor:
        """Return an int64 tensor in host memory that may be overwritten."""
        return torch.empty(self.shape, dtype=torch.int64, device="cpu")

    def send(self, filled: Tensor) -> Sent:
        """Start copying a buffer from `host_buffer`."""
        return filled, None

    def receive(self, sent: Sent) -> Tensor:
        return sent[0].to(self.device)


class CudaTransfer(Transfer):
    """Copies from reused pinned buffers on a separate stream, to overlap with kernels."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        super().__init__(shape, device)
        # Pin here: the sending thread defaults to device 0 and would create a context there.
        with torch.cuda.device(device):
            self._buffers = [
                torch.empty(shape, dtype=torch.int64, device="cpu", pin_memory=True)
                for _ in range(_NUM_BUFFERS)
            ]
        self._copied: list[torch.cuda.Event | None] = [None] * _NUM_BUFFERS
        self._turn = 0
        # torch hands out a pool of 32 streams per priority in turn. A CUDA graph is captured on one
        # of normal priority; a copy on that same stream would be captured too.
        self._stream = torch.cuda.Stream(device, priority=-1)  # type: ignore[no-untyped-call]

    def host_buffer(self) -> Tensor:
        copied = self._copied[self._turn]
        if copied is not None:
            copied.synchronize()
        return self._buffers[self._turn]

    def send(self, filled: Tensor) -> Sent:
        with torch.cuda.stream(self._stream):
            tensor = filled.to(self.device, non_blocking=True)
            arrived = torch.cuda.Event()  # type: ignore[no-untyped-call]
            arrived.record(self._stream)
        self._copied[self._turn] = arrived
        self._turn = (self._turn + 1) % _NUM_BUFFERS
        return tensor, arrived

    def receive(self, sent: Sent) -> Tensor:
        stream = torch.cuda.current_stream(self.device)
        tensor, arrived = sent
        if arrived is not None:
            stream.wait_event(arrived)
        # The copy stream owns the memory: keep the allocator from reusing it while kernels of this
        # stream still read it.
        tensor.record_stream(stream)
        return tensor


def transfer_to(device: torch.device, shape: tuple[int, ...]) -> Transfer:
    """Create the transfer of int64 tensors of one shape to a device."""
    return CudaTransfer(shape, device) if device.type == "cuda" else Transfer(shape, device)


def with_index(device: torch.device) -> torch.device:
    """Replace `cuda` with the current device's index: other threads may have another."""
    is_bare = device == torch.device("cuda")
    return torch.device("cuda", torch.cuda.current_device()) if is_bare else device
