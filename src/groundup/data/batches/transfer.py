"""From host memory to the device beside the computation: one copy a batch, in the order sent.

A sender takes a host buffer, fills it and sends it, in whatever thread; the receiver gets the
tensor on its device, safe to use on its current stream. Buffers are used again where that helps.
"""

import torch
from torch import Tensor

# One is filled while the other is on its way.
_NUM_BUFFERS = 2


Sent = tuple[Tensor, torch.cuda.Event | None]
"""A copy under way, and the event at its end where the device has such things."""


class Transfer:
    """For devices without streams of copies: the receiver copies, and buffers are given away."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        self.shape = shape
        self.device = device

    def host_buffer(self) -> Tensor:
        """An int64 tensor in host memory that may be overwritten."""
        return torch.empty(self.shape, dtype=torch.int64, device="cpu")

    def send(self, filled: Tensor) -> Sent:
        """Begin to copy what `host_buffer` gave."""
        return filled, None

    def receive(self, sent: Sent) -> Tensor:
        return sent[0].to(self.device)


class CudaTransfer(Transfer):
    """Copies from pinned memory on a stream of their own, so that they overlap with kernels."""

    def __init__(self, shape: tuple[int, ...], device: torch.device) -> None:
        super().__init__(shape, device)
        # Pinned here: a thread of its own would start from device 0 and wake that up.
        with torch.cuda.device(device):
            self._buffers = [
                torch.empty(shape, dtype=torch.int64, device="cpu", pin_memory=True)
                for _ in range(_NUM_BUFFERS)
            ]
        self._copied: list[torch.cuda.Event | None] = [None] * _NUM_BUFFERS
        self._turn = 0
        # torch hands out 32 streams of a priority in turn. The graph of a step is recorded on one
        # of normal priority; a copy sent on that one meanwhile would be recorded, too.
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
        # The memory belongs to the copying stream; it must not be used again there while kernels
        # of this one still read it.
        tensor.record_stream(stream)
        return tensor


def transfer_to(device: torch.device, shape: tuple[int, ...]) -> Transfer:
    """The way to send int64 tensors of one shape to a device."""
    return CudaTransfer(shape, device) if device.type == "cuda" else Transfer(shape, device)


def with_index(device: torch.device) -> torch.device:
    """`cuda` means the current one, which another thread may not share: say which."""
    is_bare = device == torch.device("cuda")
    return torch.device("cuda", torch.cuda.current_device()) if is_bare else device
