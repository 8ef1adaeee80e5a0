"""How a run computes: precision, compilation, and torch's switches for the time of the run."""

import contextlib
import os
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
from torch.nn.attention import SDPBackend, sdpa_kernel

from groundup.model import TransformerLM
from groundup.runs.config import RunConfig
from groundup.runtime import is_onednn_slow, keep_freed_memory

_CUBLAS_WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"


def autocast(config: RunConfig) -> AbstractContextManager[Any]:
    """Within it matmuls are computed in the run's precision; weights stay in float32."""
    if config.precision == "float32":
        return nullcontext()
    return torch.autocast(torch.device(config.device).type, dtype=torch.bfloat16)


@contextlib.contextmanager
def switches(config: RunConfig) -> Iterator[None]:
    """Set torch's process-wide switches for the run, and put them back after it."""
    with contextlib.ExitStack() as stack:
        is_cpu, is_cuda = config.device == "cpu", config.device.startswith("cuda")
        if config.num_threads is not None:
            stack.callback(torch.set_num_threads, torch.get_num_threads())
            torch.set_num_threads(config.num_threads)
        if is_cpu:
            keep_freed_memory()
        if is_cpu and is_onednn_slow():
            onednn = torch.backends.mkldnn
            stack.callback(setattr, onednn, "enabled", onednn.enabled)
            onednn.enabled = False  # type: ignore[assignment]
        if is_cuda:
            stack.callback(torch.set_float32_matmul_precision, torch.get_float32_matmul_precision())
            torch.set_float32_matmul_precision("high" if config.tf32 else "highest")
        # On the CPU torch adds up the gradients of an embedding in the order in which its threads
        # come by, unless told otherwise; the other order costs nothing.
        if config.deterministic or is_cpu:
            stack.enter_context(_deterministic(is_compiled=config.compile != "off"))
        if config.deterministic and is_cuda:
            # The sums in the backward passes of the others have no fixed order.
            stack.enter_context(sdpa_kernel([SDPBackend.FLASH_ATTENTION, SDPBackend.MATH]))
        yield


def compile_model(model: TransformerLM, config: RunConfig) -> None:
    """Compile in place what the settings say; names and weights stay as they are."""
    if config.compile == "blocks":
        for part in (*model.blocks, model.extra_values, model.final_norm):
            if part is not None:
                part.compile(dynamic=False)
    elif config.compile == "model":
        model.hidden = torch.compile(model.hidden, dynamic=False)  # type: ignore[method-assign]


@contextlib.contextmanager
def _deterministic(is_compiled: bool) -> Iterator[None]:
    mode = torch.get_deterministic_debug_mode()
    filling = torch.utils.deterministic
    was_filling = filling.fill_uninitialized_memory  # type: ignore[attr-defined]
    workspace = os.environ.get(_CUBLAS_WORKSPACE)
    # cuBLAS reads this when it starts; without it, it refuses to be deterministic.
    os.environ.setdefault(_CUBLAS_WORKSPACE, ":4096:8")
    torch.set_deterministic_debug_mode("error")
    if is_compiled:
        # The same and a switch of the compiler, which this imports: two seconds on a slow core.
        torch.use_deterministic_algorithms(True)
    # Filling finds reads of uninitialized memory, at the price of writing all of it.
    filling.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    try:
        yield
    finally:
        if workspace is None:
            os.environ.pop(_CUBLAS_WORKSPACE, None)
        if is_compiled:
            torch.use_deterministic_algorithms(mode > 0)
        torch.set_deterministic_debug_mode(mode)
        filling.fill_uninitialized_memory = was_filling  # type: ignore[attr-defined]


def not_compiled() -> AbstractContextManager[Any]:
    """For batches of any shape: layers that are compiled would be compiled anew for each."""
    # While the compiler is not loaded, which takes seconds, nothing is compiled.
    is_loaded = "torch._dynamo" in sys.modules
    return torch.compiler.set_stance("force_eager") if is_loaded else nullcontext()
