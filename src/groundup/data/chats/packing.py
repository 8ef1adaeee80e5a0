"""Rows of context_length ids that hold several conversations each, as many as fit.

Which conversations share a row is decided once; an epoch only changes the order of the rows. Every
conversation counts its positions from 0, which is how attention knows where it begins.
"""

import numpy as np
import numpy.typing as npt

from groundup.data.batches.order import Starts, number_samples
from groundup.data.chats.encoding import EncodedConversations
from groundup.data.counter_random import check_seed, permute

IGNORED = -1
"""The target of an id that nothing is to be learned from."""

# Streams of `counter_random`; 0 to 4 are in `data.batches.order`.
_ROW_SHUFFLES = 16
_VALIDATION = 17


class PackedRows:
    """Some conversations, packed into rows of `context_length` inputs."""

    num_parts = 3
    """Inputs, targets and positions."""

    def __init__(
        self,
        conversations: EncodedConversations,
        chosen: npt.NDArray[np.int64],
        context_length: int,
    ) -> None:
        self.conversations = conversations
        self.context_length = context_length
        lengths = np.diff(conversations.offsets)[chosen] - 1
        rows = pack(lengths, context_length)
        self.num_rows = int(rows.max()) + 1
        by_row = np.argsort(rows, kind="stable")
        ends = np.cumsum(np.bincount(rows))
        self._members = np.split(chosen[by_row], ends[:-1])

    @property
    def num_ids(self) -> int:
        """Of all rows, padding included."""
        return self.num_rows * self.context_length

    def fill(self, target: npt.NDArray[np.int64], rows: Starts) -> None:
        """Write rows as (3, rows, context_length): inputs, targets, positions.

        A target is IGNORED where the next id is not part of an answer; padding is, too, and every
        id of it is a sequence by itself.
        """
        all_ids, is_answer = self.conversations.ids, self.conversations.is_answer
        offsets = self.conversations.offsets
        inputs, targets, positions = target
        inputs[...] = positions[...] = 0
        targets[...] = IGNORED
        for line, row in enumerate(rows.tolist()):
            start = 0
            for number in self._members[row].tolist():
                begin, end = int(offsets[number]), int(offsets[number + 1]) - 1
                part = slice(start, start + end - begin)
                inputs[line, part] = all_ids[begin:end]
                following = all_ids[begin + 1 : end + 1].astype(np.int64)
                targets[line, part] = np.where(is_answer[begin + 1 : end + 1], following, IGNORED)
                positions[line, part] = np.arange(end - begin)
                start = part.stop


class ShuffledRows:
    """Every row once an epoch, in an order that differs every epoch."""

    def __init__(self, rows: PackedRows, seed: int) -> None:
        self.num_ids = rows.num_ids
        self.context_length = rows.context_length
        self.num_rows = rows.num_rows
        self.seed = check_seed(seed)

    def starts(self, first_sample: int, count: int) -> Starts:
        """The numbers of the rows of some samples."""
        samples = number_samples(first_sample, count)
        epochs, positions = np.divmod(samples, np.uint64(self.num_rows))
        rows = permute(self.seed, _ROW_SHUFFLES, epochs, positions, self.num_rows)
        return rows.astype(np.int64)


def split(
    count: int, validation_fraction: float
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """Which of `count` conversations are for training and which for validation, whatever the seed.

    There is one for validation at least, where there are two; none with a fraction of 0.
    """
    num_held = max(1, round(validation_fraction * count)) if validation_fraction else 0
    num_held = min(num_held, count - 1)
    epoch, positions = np.zeros(count, np.uint64), np.arange(count, dtype=np.uint64)
    order = permute(0, _VALIDATION, epoch, positions, count).astype(np.int64)
    return np.sort(order[num_held:]), np.sort(order[:num_held])


def pack(lengths: npt.NDArray[np.int64], capacity: int) -> npt.NDArray[np.int64]:
    """The row of each length, the longest first, each into the fullest row that has room for it."""
    rows = np.empty(len(lengths), np.int64)
    by_room: list[list[int]] = [[] for _ in range(capacity + 1)]
    rooms = 0  # Bit r is set where a row has room for r.
    num_rows = 0
    for number in np.argsort(-lengths, kind="stable").tolist():
        length = int(lengths[number])
        if fitting := rooms >> length:
            room = length + (fitting & -fitting).bit_length() - 1
            row = by_room[room].pop()
            if not by_room[room]:
                rooms ^= 1 << room
        else:
            room, row = capacity, num_rows
            num_rows += 1
        rows[number] = row
        by_room[room - length].append(row)
        rooms |= 1 << (room - length)
    return rows
