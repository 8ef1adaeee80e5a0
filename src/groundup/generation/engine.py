"""The generation loop: rows of ids that grow by one id a step, joining and leaving at any time.

It knows no text. Running rows stay packed at the front of the decoder's rows.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from groundup.errors import ConfigError
from groundup.generation.choosing import HostChooser, Row, device_chooser
from groundup.generation.decoder import Decoder, ModelDecoder, WritableIds
from groundup.generation.packed_decoder import choose_decoder
from groundup.generation.request import FinishReason, GenerationRequest, NewToken
from groundup.generation.sampling import NO_ID, Uniforms

if TYPE_CHECKING:
    from groundup.model import TransformerLM


class Engine:
    """Continues many requests at once: `add` them, `step` until none is running.

    The same request gives the same ids whatever else is running. Not for several threads.
    """

    def __init__(
        self,
        model: TransformerLM | Decoder,
        max_rows: int = 64,
        max_seq_len: int | None = None,
        writable: WritableIds | None = None,
    ) -> None:
        """`max_rows`, `max_seq_len` (the model's context if not given) and `writable` (all of the
        model's ids if not given) are for a model; a decoder brings its own."""
        if isinstance(model, torch.nn.Module):
            model = choose_decoder(model, max_rows, max_seq_len, writable)
        self.decoder: Decoder = model
        self._host = HostChooser(model)
        self._device = device_chooser(model)
        self._rows: list[Row] = []
        self._has_changed = False
        # Steps in which nothing can happen but a stop id, and whether any row has such ids or asks
        # for likelihoods.
        self._num_quiet_steps = 0
        self._has_stops = self._has_questions = False
        self._handles = itertools.count()

    @property
    def max_rows(self) -> int:
        return self.decoder.max_rows

    @property
    def num_running(self) -> int:
        return len(self._rows)

    @property
    def num_free(self) -> int:
        return self.decoder.max_rows - len(self._rows)

    def add(self, request: GenerationRequest) -> int:
        """Take a request in and return its handle; the next step gives its first id.

        The prompts that came since the last step are read at the next one, together if they can be.
        """
        if not self.num_free:
            raise ConfigError(f"all {self.max_rows} rows are taken: wait until one is free")
        if request.max_tokens < 1:
            raise ConfigError("max_tokens is 0; it must be 1 or more")
        request.check_fits(self.decoder.vocab_size, self.decoder.max_seq_len)
        ids = list(request.prompt_ids[-self.decoder.max_seq_len :])
        row = Row(next(self._handles), request, ids, Uniforms(request.seed))
        self._host.join(len(self._rows), row)
        self._rows.append(row)
        self._has_changed = True
        return row.handle

    def step(self) -> list[tuple[int, NewToken]]:
        """One new id for each running request, with its handle; the finished ones have left."""
        if not self._rows:
            return []
        if self._has_changed or self._num_quiet_steps == 0:
            self._slide()
            self._read_prompts()
            self._num_quiet_steps = min(map(self._steps_until_event, self._rows))
            self._has_stops = any(row.request.stop_ids for row in self._rows)
            self._has_questions = any(row.request.num_alternatives >= 0 for row in self._rows)
        chosen, logits = self._choose()
        likelihoods = self._likelihoods(logits, chosen) if self._has_questions else {}
        self._num_quiet_steps -= 1
        for row, id in zip(self._rows, chosen, strict=True):
            row.ids.append(id)
            row.num_new += 1
        may_end = self._num_quiet_steps == 0 or self._has_stops or NO_ID in chosen
        if not may_end and not likelihoods:
            # What most steps of many rows are, so that little time goes into each row.
            tokens = [NewToken(id, None, (), None) for id in chosen]
            return list(zip([row.handle for row in self._rows], tokens, strict=True))
        new: list[tuple[int, NewToken]] = []
        finished = []
        for index, (row, id) in enumerate(zip(self._rows, chosen, strict=True)):
            reason: FinishReason | None = None
            if id == NO_ID:
                reason = "error"
                if isinstance(self.decoder, ModelDecoder):
                    # Where masked keys enter a matmul, NaN would spread to the row's next text.
                    self.decoder.forget(index)
            elif id in row.request.stop_ids:
                reason = "stop"
            elif self._num_quiet_steps == 0:
                reason = self._reason_to_finish(row)
            if reason is not None:
                finished.append(index)
            log_probability, alternatives = likelihoods.get(index, (None, ()))
            new.append((row.handle, NewToken(id, log_probability, alternatives, reason)))
        # From the last on, so that a row that is filled up is never one still to be emptied.
        for index in reversed(finished):
            self._leave(index)
        return new

    def remove(self, handle: int) -> None:
        """Let a request leave before its end; one that has left already is not an error.

        handle: as `add` gave it.
        """
        for index, row in enumerate(self._rows):
            if row.handle == handle:
                self._leave(index)
                return

    def clear(self) -> None:
        """Let all requests leave."""
        self._rows.clear()
        self._has_changed = True

    def _slide(self) -> None:
        context = self.decoder.max_seq_len
        for row in self._rows:
            if len(row.ids) > context:
                row.ids = row.ids[-max(1, context // 2) :]
                row.is_waiting, row.holds_prompt = True, False
                self._has_changed = True

    def _read_prompts(self) -> None:
        """Prefill the rows that wait, equal prompts once.

        A row's last id is left out: the next step decodes it with those of the other rows.
        """
        # For each prompt the row to copy it from: one that was read already, or else the first.
        sources: dict[tuple[int, ...], int] = {}
        for index, row in enumerate(self._rows):
            prompt = row.request.prompt_ids
            if row.holds_prompt and (prompt not in sources or not row.is_waiting):
                sources[prompt] = index
        texts: list[tuple[int, list[int]]] = []
        copies: list[tuple[int, int]] = []
        for index, row in enumerate(self._rows):
            if not row.is_waiting:
                continue
            row.is_waiting = False
            source = sources[row.request.prompt_ids] if row.holds_prompt else index
            if len(row.ids) > 1 and source == index:
                texts.append((index, row.ids[:-1]))
            elif len(row.ids) > 1:
                copies.append((source, index))
        if texts:
            self.decoder.prefill_many(texts)
        for source, target in copies:
            self.decoder.copy(source, target)

    def _steps_until_event(self, row: Row) -> int:
        """After so many steps the row is full or finished, if no stop id comes before."""
        num_left = row.request.max_tokens - row.num_new
        return min(num_left, self.decoder.max_seq_len + 1 - len(row.ids))

    def _reason_to_finish(self, row: Row) -> FinishReason | None:
        is_full = len(row.ids) > self.decoder.max_seq_len
        stops = is_full and row.request.past_context == "stop"
        return "length" if stops or row.num_new == row.request.max_tokens else None

    def _leave(self, index: int) -> None:
        last = len(self._rows) - 1
        if index != last:
            self.decoder.copy(last, index)
            self._host.move(last, index)
            self._rows[index] = self._rows[last]
        self._rows.pop()
        self._has_changed = True

    def _choose(self) -> tuple[list[int], Tensor]:
        """The next id of each row, and the logits it was sampled from."""
        has_changed, self._has_changed = self._has_changed, False
        if self._device is not None:
            answer = self._device.advance(self._rows, has_changed, self._num_quiet_steps)
            if answer is not None:
                return answer
        return self._host.advance(self._rows, has_changed)

    @torch.inference_mode()
    def _likelihoods(
        self, logits: Tensor, chosen: list[int]
    ) -> dict[int, tuple[float, tuple[tuple[int, float], ...]]]:
        """For the rows that ask: the sampled id's log-probability, and those of the likeliest."""
        wanted = {
            index: row.request.num_alternatives
            for index, row in enumerate(self._rows)
            if row.request.num_alternatives >= 0 and chosen[index] != NO_ID
        }
        if not wanted:
            return {}
        log_probabilities = torch.log_softmax(logits[list(wanted)], dim=-1)
        ids = torch.tensor([chosen[index] for index in wanted], device=logits.device)
        own = log_probabilities.gather(-1, ids[:, None])[:, 0].tolist()
        best = log_probabilities.topk(min(max(wanted.values()), self.decoder.num_writable), dim=-1)
        return {
            index: (value, tuple(zip(best_ids[:count], best_values[:count], strict=True)))
            for (index, count), value, best_ids, best_values in zip(
                wanted.items(), own, best.indices.tolist(), best.values.tolist(), strict=True
            )
        }
