"""Which decoder a model gets, and whether the one it has still fits its layers and weights."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from groundup.generation.decoder import AllowedIds, Decoder
from groundup.generation.torch_decoder import TorchDecoder
from groundup.model import ModelConfig, TransformerLM
from groundup.nn.kernels import HAS_TRITON, are_enabled

# Attributes of modules that change training alone.
_NOT_DECODED = {"training", "document_id", "float8_inputs", "_has_float8_output"}


def choose_decoder(
    model: TransformerLM,
    max_rows: int,
    max_seq_len: int | None = None,
    allowed: AllowedIds | None = None,
) -> Decoder:
    """The fastest decoder for the model and its device.

    A model with a layer or a hook that its settings do not describe runs its own forward, as does
    any model without kernels and on devices other than CPU and CUDA.
    """
    weight = model.output_weight
    is_known = are_enabled() and weight.device.type in ("cpu", "cuda") and is_as_configured(model)
    is_half = weight.dtype in (torch.bfloat16, torch.float16)
    if is_known and weight.is_cuda and HAS_TRITON and is_half and cuda_kernels_know(model.config):
        from groundup.generation.cuda_decoder import CudaDecoder

        return CudaDecoder(model, max_rows, max_seq_len, allowed)
    return TorchDecoder(model, max_rows, max_seq_len, allowed, is_packed=is_known)


def cuda_kernels_know(config: ModelConfig) -> bool:
    """Whether `CudaDecoder` can run such a model."""
    return config.norm == "pre" and config.num_layers > 0


def is_as_configured(model: TransformerLM) -> bool:
    """Whether no module was swapped, changed, or given a hook or a forward of its own."""
    built = TransformerLM.from_config(model.config, device="meta")
    return _describe_modules(model) == _describe_modules(built)


def fingerprint(model: TransformerLM) -> object:
    """Changes with the modules and the weights, of which a decoder may have copies.

    Writes through `.data` are not counted by torch: a few values of each weight reveal them.
    """
    parameters = [parameter.detach() for parameter in model.parameters()]
    values = torch.cat([one.flatten()[:4] for one in parameters]).tolist()
    return _describe_modules(model), weight_versions(parameters), values


def weight_versions(parameters: Sequence[Tensor]) -> list[tuple[int, int]]:
    """Changes where torch counts a write or a parameter gets other data; microseconds."""
    return [(one.data_ptr(), 0 if one.is_inference() else one._version) for one in parameters]


def _describe_modules(model: TransformerLM) -> list[tuple[type, dict[str, object], bool]]:
    """Of each module its type, its plain attributes, and whether it has a hook or a forward of its
    own: what decides, besides the weights, what the model computes."""
    return [
        (
            type(module),
            {
                name: value
                for name, value in vars(module).items()
                if isinstance(value, int | float | str) and name not in _NOT_DECODED
            },
            bool(module._forward_hooks or module._forward_pre_hooks) or "forward" in vars(module),
        )
        for module in model.modules()
    ]
