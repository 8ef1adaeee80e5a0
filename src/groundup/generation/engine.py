"""The generation loop, with continuous batching: requests join and leave between steps.

It handles ids, not text; a decoder runs the model. Running rows are always the decoder's first.
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

# Model settings that the fast decoders support, some only with these values; other models are
# decoded by their own forward.
DECODED: dict[str, tuple[str, ...]] = dict.fromkeys(
    "vocab_size context_length d_model num_layers num_heads num_kv_heads d_ff rope_theta norm "
    "norm_eps positions tie_embeddings embedding_scale qk_norm initialization zero_outputs "
    "gated_attention value_embeddings dropout document_separator".split(),
    (),
) | {"attention": ("full",), "feed_forward": ("swiglu", "silu", "gelu", "relu2")}


class Engine:
    """Continues many requests at once: `add` them, then `step` until none is running.

    A request gets the same ids whatever else is running, except on near-ties: the number of rows
    and the longest text select kernels, which changes the last digits of logits. Not thread-safe.
    """

    def __init__(
        self,
        model: TransformerLM | Decoder,
        max_rows: int = 64,
        num_allowed: int | None = None,
    ) -> None:
        """`max_rows` and `num_allowed` (default: all ids) are ignored for a decoder. The layers and
        weights of a model may change while no request is running."""
        self._rows: list[Row] = []
        self._has_changed = False
        # Steps during which rows can only end by a stop id; whether any row has stop ids, or needs
        # log-probabilities.
        self._num_quiet_steps = 0
        self._has_stops = self._needs_logprobs = False
        self._handles = itertools.count()
        self._model: TransformerLM | None = None
        self.decoder: Decoder
        if isinstance(model, Decoder):
            self.decoder = model
        else:
            self._model, self._settings = model, (max_rows, num_allowed)
            self._choose_decoder(model)

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
        """Add a request and return its handle; the next step returns its first id.

        The next step prefills all prompts added since the last one, batched if possible.
        """
        if not self.num_free:
            raise ConfigError(f"all {self.max_rows} rows are taken: wait until one is free")
        if request.max_tokens < 1:
            raise ConfigError("max_tokens is 0; it must be 1 or more")
        if not self._rows and self._model is not None and self._snapshot() != self._seen:
            self._choose_decoder(self._model)
        request.check_fits(self.decoder.vocab_size, self.decoder.context_length)
        row = Row(next(self._handles), request, list(request.prompt_ids))
        self._rows.append(row)
        self._has_changed = True
        return row.handle

    def step(self) -> list[tuple[int, NewToken]]:
        """Return (handle, new token) of each running request, and remove finished ones."""
        if not self._rows:
            return []
        if self._has_changed:
            self._prefill_waiting()
            self._num_quiet_steps = min(map(self._steps_left, self._rows))
            self._has_stops = any(row.request.stop_ids for row in self._rows)
            self._needs_logprobs = any(row.request.num_alternatives >= 0 for row in self._rows)
            self.decoder.begin(self._rows)
            self._has_changed = False
        chosen, logits = self.decoder.step(self._num_quiet_steps)
        self._num_quiet_steps -= 1
        for row, id in zip(self._rows, chosen, strict=True):
            row.ids.append(id)
            row.num_new += 1
        may_end = self._num_quiet_steps == 0 or self._has_stops or NO_ID in chosen
        if not may_end and not self._needs_logprobs:
            # Fast path of most steps: little work per row.
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
        # Backwards, because removing a row moves the last one to its index.
        for index in reversed(finished):
            self._remove_row(index)
        return new

    def remove(self, handle: int) -> None:
        """Remove a request before its end; does nothing if it has already finished."""
        for index, row in enumerate(self._rows):
            if row.handle == handle:
                self._remove_row(index)
                return

    def clear(self) -> None:
        """Remove all requests."""
        self._rows = []

    def _choose_decoder(self, model: TransformerLM) -> None:
        # Keep the old objects alive, so that new ones cannot get their addresses.
        self._modules, self._weights = list(model.modules()), list(model.parameters())
        self._attributes = [dict(vars(module)) for module in self._modules]
        self._seen = self._snapshot()
        self.decoder = choose_decoder(model, *self._settings)

    def _snapshot(self) -> tuple[list[int], list[tuple[int, int]]]:
        """The identities of the model's attributes, submodules, weights and hooks, and the address
        and version of each weight (torch does not count writes through `.data`)."""
        kinds = "_modules", "_parameters", "_forward_hooks", "_forward_pre_hooks"
        attributes = [vars(module) for module in self._modules]
        parts = [one[kind] for one in attributes for kind in kinds]
        ids = [id(value) for values in attributes + parts for value in values.values()]
        return ids, [(w.data_ptr(), 0 if w.is_inference() else w._version) for w in self._weights]

    def _prefill_waiting(self) -> None:
        """Prefill the waiting rows, each distinct prompt once.

        A prompt's last id is left out: the next step decodes it along with the other rows.
        """
        # The first row with each prompt, to copy it from.
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
        """Steps until the row ends, unless a stop id ends it before."""
        num_left = row.request.max_tokens - row.num_new
        return min(num_left, self.decoder.context_length + 1 - len(row.ids))

    def _remove_row(self, index: int) -> None:
        last = self._rows.pop()
        if index < len(self._rows):
            self.decoder.copy(len(self._rows), index)
            self._rows[index] = last
        self._has_changed = True


@torch.inference_mode()
def _likelihoods(
    rows: list[Row], chosen: list[int], logits: Tensor
) -> dict[int, tuple[float, tuple[tuple[int, float], ...]]]:
    """For rows that need them: log-probabilities of the sampled id and of the most likely ids."""
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
    """Return the fastest decoder for the model and its device.

    The model's own forward runs if it has a layer or hook that its settings do not describe, if
    fused kernels are disabled, or on devices other than CPU and CUDA.
    """
    weight, config = model.output_weight, model.config
    built = TransformerLM.from_config(config, device="meta")
    is_supported = are_enabled() and weight.device.type in ("cpu", "cuda")
    for name, field in ModelConfig.model_fields.items():
        known = DECODED.get(name, (field.default,))
        is_supported &= not known or getattr(config, name) in known
    own, usual = ([describe_module(part) for part in one.modules()] for one in (model, built))
    is_supported &= own == usual
    is_half = weight.dtype in (torch.bfloat16, torch.float16)
    is_pre_norm = config.norm == "pre" and config.num_layers > 0
    if is_supported and weight.is_cuda and HAS_TRITON and is_half and is_pre_norm:
        from groundup.generation.cuda_decoder import CudaDecoder

        return CudaDecoder(model, max_rows, num_allowed)
    return TorchDecoder(model, max_rows, num_allowed, is_packed=is_supported)
