"""How the engine's rows get their next ids: decoded and sampled here, or both by a device at once.

A device that samples needs nothing from the host between steps, so its next step begins before the
ids of the last are looked at.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float
from torch import Tensor

from groundup.generation.decoder import Decoder
from groundup.generation.request import GenerationRequest
from groundup.generation.sampling import Sampler, Uniforms


@dataclass
class Row:
    """A request that is running."""

    handle: int
    request: GenerationRequest
    ids: list[int]
    """What the model sees; the last of them is not in the cache yet."""
    uniforms: Uniforms
    num_new: int = 0
    is_waiting: bool = True
    """The cache does not have the text yet."""
    holds_prompt: bool = True
    """The text still begins with the prompt."""


class HostChooser:
    """Lets the decoder decode and samples from its logits, rows of equal samplers together."""

    def __init__(self, decoder: Decoder) -> None:
        self._decoder = decoder
        # For rules that ask: which ids the text of each row holds.
        self._seen: Tensor | None = None
        self._groups: dict[Sampler, list[int]] = {}

    def join(self, index: int, row: Row) -> None:
        """A row begins at this index."""
        if not row.request.sampler.needs_history:
            return
        if self._seen is None:
            shape = (self._decoder.max_rows, self._decoder.vocab_size)
            self._seen = torch.zeros(shape, dtype=torch.bool, device=self._decoder.device)
        self._seen[index] = False
        self._seen[index, torch.tensor(row.request.prompt_ids, device=self._seen.device)] = True

    def move(self, source: int, target: int) -> None:
        """A row takes another index."""
        if self._seen is not None:
            self._seen[target] = self._seen[source]

    @torch.inference_mode()
    def advance(self, rows: Sequence[Row], has_changed: bool) -> tuple[list[int], Tensor]:
        """The next ids, NO_ID where logits are not finite, and the logits they are from."""
        if has_changed:
            self._groups = {}
            for index, row in enumerate(rows):
                self._groups.setdefault(row.request.sampler, []).append(index)
        logits = self._decoder.decode(
            torch.tensor([row.ids[-1] for row in rows]),
            torch.tensor([len(row.ids) - 1 for row in rows]),
        )
        numbers = torch.tensor([row.uniforms[row.num_new] for row in rows], dtype=torch.float64)
        if len(self._groups) == 1:
            sampler = next(iter(self._groups))
            seen = self._history(sampler, slice(len(rows)), logits)
            ids = sampler.sample(logits, numbers, seen)
        else:
            ids = torch.empty(len(rows), dtype=torch.long, device=logits.device)
            for sampler, group in self._groups.items():
                seen = self._history(sampler, group, logits)
                ids[group] = sampler.sample(logits[group], numbers[group], seen).to(ids.device)
        if self._seen is not None:
            known = ids.clamp(min=0)[:, None].to(self._seen.device)
            self._seen[: len(rows)].scatter_(1, known, True)
        return ids.tolist(), logits

    def _history(self, sampler: Sampler, rows: slice | list[int], logits: Tensor) -> Tensor | None:
        if self._seen is None or not sampler.needs_history:
            return None
        # A prompt may hold ids that cannot be written.
        return self._seen[rows, : logits.shape[-1]]


@runtime_checkable
class SamplingDecoder(Protocol):
    """A decoder that also samples: `set_rows` says where the rows stand, each `launch` begins a
    number of steps from where the last one ended. Calling its answer waits for their ids."""

    steps_at_once: int
    """The other number of steps there may be than one."""

    def set_rows(self, rows: Sequence[Any]) -> None: ...

    def launch(self, n: int, num_steps: int) -> Callable[[], list[list[int]]]: ...

    @property
    def logits(self) -> Float[Tensor, "rows writable"]: ...


# Rows of which one so seldom ends by a stop id that several steps begin at once all the same; what
# has begun by then is dropped.
_FEW_ROWS = 4


class DeviceChooser:
    """Keeps one launch ahead of the ids that are read.

    Steps that began before a row came or went are dropped and begun again: they only wrote keys and
    values that the new ones write as well.
    """

    def __init__(self, decoder: SamplingDecoder, describe: Callable[[Row], Any | None]) -> None:
        """`describe` makes of a row what `set_rows` takes, None if its rules are unknown there."""
        self._decoder = decoder
        self._describe = describe
        self._ahead: tuple[Callable[[], list[list[int]]], int] | None = None
        self._ids: deque[list[int]] = deque()
        self._knows_all = False
        self._can_look_ahead = False
        self._can_launch_many = False

    def advance(
        self, rows: Sequence[Row], has_changed: bool, num_quiet_steps: int
    ) -> tuple[list[int], Tensor] | None:
        """As the host's; None, and nothing done, where the device does not know a rule.

        No row can end within `num_quiet_steps` but by a stop id: so far a step may be ahead.
        """
        if has_changed:
            self._begin(rows)
        if not self._knows_all:
            return None
        if not self._ids:
            read, num_steps = self._ahead or self._launch(len(rows), num_quiet_steps)
            num_left = num_quiet_steps - num_steps
            is_ahead = self._can_look_ahead and num_left > 0
            self._ahead = self._launch(len(rows), num_left) if is_ahead else None
            self._ids.extend(read())
        return self._ids.popleft(), self._decoder.logits[: len(rows)]

    def _launch(self, n: int, most: int) -> tuple[Callable[[], list[list[int]]], int]:
        """What waits for the ids of the steps that begin, and how many these are."""
        num_steps = self._decoder.steps_at_once
        # The last ones begin singly: the ids of each are given out while the next is computed.
        if not self._can_launch_many or most <= num_steps:
            num_steps = 1
        return self._decoder.launch(n, num_steps), num_steps

    def _begin(self, rows: Sequence[Row]) -> None:
        self._ahead = None
        self._ids.clear()
        states = [self._describe(row) for row in rows]
        self._knows_all = None not in states
        if self._knows_all:
            self._decoder.set_rows(states)
            # The logits of a step that is being looked at must stay until then.
            self._can_look_ahead = all(row.request.num_alternatives < 0 for row in rows)
            is_steady = len(rows) <= _FEW_ROWS or not any(row.request.stop_ids for row in rows)
            self._can_launch_many = self._can_look_ahead and is_steady


def device_chooser(decoder: Decoder) -> DeviceChooser | None:
    """The chooser of a decoder that samples."""
    if not isinstance(decoder, SamplingDecoder):
        return None
    from groundup.generation.cuda_decoder import RowState, SamplerSettings

    def describe(row: Row) -> RowState | None:
        settings = SamplerSettings.of(row.request.sampler)
        if settings is None:
            return None
        return RowState(row.ids[-1], len(row.ids) - 1, row.num_new, row.request.seed, settings)

    return DeviceChooser(decoder, describe)
