"""The generation loop: rows of ids that grow by one id a step, joining and leaving at any time.

It knows no text and no model. Running rows stay packed at the front of the decoder's rows.
"""

import itertools
import math

import torch
from torch import Tensor

from groundup.errors import ConfigError
from groundup.generation.decoder import Decoder, Row
from groundup.generation.request import NO_ID, FinishReason, GenerationRequest, NewToken
from groundup.generation.torch_decoder import TorchDecoder
from groundup.model import ModelConfig, TransformerLM
from groundup.model.parts import describe_module
from groundup.nn.kernels import HAS_TRITON, are_enabled

# The settings of a model that the fast decoders know, some with the only values that they know;
# with others it runs its own forward.
DECODED: dict[str, tuple[str, ...]] = dict.fromkeys(
    "vocab_size context_length d_model num_layers num_heads num_kv_heads d_ff rope_theta norm "
    "norm_eps positions tie_embeddings embedding_scale qk_norm initialization zero_outputs "
    "gated_attention value_embeddings dropout document_separator".split(),
    (),
) | {"attention": ("full",), "feed_forward": ("swiglu", "silu", "gelu", "relu2")}


class Engine:
    """Continues many requests at once: `add` them, `step` until none is running.

    The same request gives the same ids whatever else is running, but for near-ties: the kernels of
    matmuls and attention, and with them the last digits of logits, depend on the number of rows and
    on the longest text. Not for several threads.
    """

    def __init__(
        self,
        model: TransformerLM | Decoder,
        max_rows: int = 64,
        num_allowed: int | None = None,
    ) -> None:
        """`max_rows` and `num_allowed` (all ids if not given) are for a model, whose layers and
        weights may change while no request is running."""
        self._rows: list[Row] = []
        self._has_changed = False
        # Steps in which nothing can happen but a stop id, and whether any row has such ids or asks
        # for likelihoods.
        self._num_quiet_steps = 0
        self._has_stops = self._has_questions = False
        self._handles = itertools.count()
        self._model: TransformerLM | None = None
        self.decoder: Decoder
        if isinstance(model, Decoder):
            self.decoder = model
        else:
            self._model, self._settings = model, (max_rows, num_allowed)
            self._choose(model)

    @property
    def max_rows(self) -> int:
        return self.decoder.max_rows

    @property
    def num_running(self) -> int:
        return len(self._rows)

    @property
    def num_free(self) -> int:
        return self.max_rows - len(self._rows)

    def add(self, request: GenerationRequest) -> int:
        """Take a request in and return its handle; the next step gives its first id.

        The prompts that came since the last step are read at the next one, together if they can be.
        """
        if not self.num_free:
            raise ConfigError(f"all {self.max_rows} rows are taken: wait until one is free")
        if request.max_tokens < 1:
            raise ConfigError("max_tokens is 0; it must be 1 or more")
        if not self._rows and self._model is not None and _look_at(self._model) != self._seen:
            self._choose(self._model)
        request.check_fits(self.decoder.vocab_size, self.decoder.context_length)
        row = Row(next(self._handles), request, list(request.prompt_ids))
        self._rows.append(row)
        self._has_changed = True
        return row.handle

    def step(self) -> list[tuple[int, NewToken]]:
        """One new id for each running request, with its handle; the finished ones have left."""
        if not self._rows:
            return []
        if self._has_changed:
            self._read_prompts()
            self._num_quiet_steps = min(map(self._steps_left, self._rows))
            self._has_stops = any(row.request.stop_ids for row in self._rows)
            self._has_questions = any(row.request.num_alternatives >= 0 for row in self._rows)
            self.decoder.begin(self._rows)
            self._has_changed = False
        chosen, logits = self.decoder.step(self._num_quiet_steps)
        self._num_quiet_steps -= 1
        for row, id in zip(self._rows, chosen, strict=True):
            row.ids.append(id)
            row.num_new += 1
        may_end = self._num_quiet_steps == 0 or self._has_stops or NO_ID in chosen
        if not may_end and not self._has_questions:
            # Most steps of many rows, so that little time goes into each row.
            tokens = [NewToken(id, None, (), None) for id in chosen]
            return list(zip([row.handle for row in self._rows], tokens, strict=True))
        likelihoods = _likelihoods(self._rows, chosen, logits)
        new: list[tuple[int, NewToken]] = []
        finished: list[int] = []
        for index, (row, id) in enumerate(zip(self._rows, chosen, strict=True)):
            reason: FinishReason | None = None
            if id == NO_ID:
                reason = "error"
            elif id in row.request.stop_ids:
                reason = "stop"
            elif self._steps_left(row) == 0:
                reason = "length"
            if reason is not None:
                finished.append(index)
            own, alternatives = likelihoods.get(index, (None, ()))
            new.append((row.handle, NewToken(id, own, alternatives, reason)))
        # From the last on, so that a row that is filled up is never one still to be emptied.
        for index in reversed(finished):
            self._leave(index)
        return new

    def remove(self, handle: int) -> None:
        """Let a request leave before its end; one that has left already is not an error."""
        for index, row in enumerate(self._rows):
            if row.handle == handle:
                self._leave(index)
                return

    def clear(self) -> None:
        """Let all requests leave."""
        self._rows = []

    def _choose(self, model: TransformerLM) -> None:
        # The weights are kept, so that no others can come to be where they were.
        self._seen, self._weights = _look_at(model), list(model.parameters())
        self.decoder = choose_decoder(model, *self._settings)

    def _read_prompts(self) -> None:
        """Prefill the rows that wait, equal prompts once.

        A row's last id is left out: the next step decodes it with those of the other rows.
        """
        # For each prompt the first row that has it, to copy it from.
        sources: dict[tuple[int, ...], int] = {}
        texts: list[tuple[int, list[int]]] = []
        copies: list[tuple[int, int]] = []
        for index, row in enumerate(self._rows):
            source = sources.setdefault(row.request.prompt_ids, index)
            if row.is_waiting and len(row.ids) > 1:
                if source == index:
                    texts.append((index, row.ids[:-1]))
                else:
                    copies.append((source, index))
            row.is_waiting = False
        if texts:
            self.decoder.prefill(texts)
        for source, target in copies:
            self.decoder.copy(source, target)

    def _steps_left(self, row: Row) -> int:
        """After so many steps the row ends, if no stop id comes before."""
        num_left = row.request.max_tokens - row.num_new
        return min(num_left, self.decoder.context_length + 1 - len(row.ids))

    def _leave(self, index: int) -> None:
        last = self._rows.pop()
        if index < len(self._rows):
            self.decoder.copy(len(self._rows), index)
            self._rows[index] = last
        self._has_changed = True


@torch.inference_mode()
def _likelihoods(
    rows: list[Row], chosen: list[int], logits: Tensor
) -> dict[int, tuple[float, tuple[tuple[int, float], ...]]]:
    """For the rows that ask: the sampled id's log-probability, and those of the likeliest."""
    asked = enumerate(row.request.num_alternatives for row in rows)
    counts = {index: count for index, count in asked if count >= 0 and chosen[index] != NO_ID}
    if not counts:
        return {}
    log_probabilities = torch.log_softmax(logits[list(counts)], dim=-1)
    ids = torch.tensor([chosen[index] for index in counts], device=logits.device)
    own = log_probabilities.gather(-1, ids[:, None])[:, 0].tolist()
    best = log_probabilities.topk(min(max(counts.values()), logits.shape[-1]), dim=-1)
    likeliest = map(zip, best.indices.tolist(), best.values.tolist())
    return {
        index: (
            value,
            tuple(pair for pair in itertools.islice(pairs, count) if pair[1] > -math.inf),
        )
        for (index, count), value, pairs in zip(counts.items(), own, likeliest, strict=True)
    }


def choose_decoder(model: TransformerLM, max_rows: int, num_allowed: int | None = None) -> Decoder:
    """The fastest decoder for the model and its device.

    A model with a layer or a hook that its settings do not describe runs its own forward, as does
    any model without kernels and on devices other than CPU and CUDA.
    """
    weight, config = model.output_weight, model.config
    built = TransformerLM.from_config(config, device="meta")
    is_known = are_enabled() and weight.device.type in ("cpu", "cuda")
    for name, field in ModelConfig.model_fields.items():
        known = DECODED.get(name, (field.default,))
        is_known &= not known or getattr(config, name) in known
    is_known = is_known and _look_at(model)[0] == _look_at(built)[0]
    is_half = weight.dtype in (torch.bfloat16, torch.float16)
    is_usual = config.norm == "pre" and config.num_layers > 0
    if is_known and weight.is_cuda and HAS_TRITON and is_half and is_usual:
        from groundup.generation.cuda_decoder import CudaDecoder

        return CudaDecoder(model, max_rows, num_allowed)
    return TorchDecoder(model, max_rows, num_allowed, is_packed=is_known)


def _look_at(model: TransformerLM) -> tuple[list[object], list[object]]:
    """Its modules; and of each weight its place and the number of writes, of which torch does not
    count those through `.data`. A decoder may have copies of both."""
    weights = [(w.data_ptr(), 0 if w.is_inference() else w._version) for w in model.parameters()]
    return [describe_module(one) for one in model.modules()], [*weights]
