"""Capture and restore the global random states of Python, NumPy and torch as JSON values."""

import base64
import logging
import random
from typing import Any

import numpy as np
import torch
from torch import Tensor

from groundup.errors import CheckpointError

_log = logging.getLogger(__name__)


def capture_random_state(device: torch.device | None = None) -> dict[str, Any]:
    """Return the current random states, for `restore_random_state`.

    Includes CUDA devices only if CUDA is initialized, since otherwise they have sampled nothing.
    With `device`, other types of device are omitted.
    """
    kinds = {"cuda", "mps"} if device is None else {device.type}
    version, words, gauss = random.getstate()
    numpy = np.random.get_state(legacy=False)
    key, position = _encode(numpy["state"]["key"].astype("<u4")), numpy["state"]["pos"]
    state: dict[str, Any] = {
        "python": {"version": version, "words": _encode(np.array(words, "<u4")), "gauss": gauss},
        "numpy": {**numpy, "state": {"key": {"dtype": "<u4", "data": key}, "pos": position}},
        "torch": _encode(torch.get_rng_state().numpy()),
        "cuda": [],
    }
    in_use = torch.cuda.is_available() and torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
    if "cuda" in kinds and in_use:
        state["cuda"] = [_encode(one.cpu().numpy()) for one in torch.cuda.get_rng_state_all()]
    if "mps" in kinds and torch.backends.mps.is_available():
        state["mps"] = _encode(torch.mps.get_rng_state().cpu().numpy())
    return state


def restore_random_state(state: dict[str, Any]) -> None:
    """Restore a captured state; logs a warning if it has more CUDA devices than this machine."""
    try:
        python = state["python"]
        words = tuple(_decode(python["words"], "<u4").tolist())
        numpy = state["numpy"]
        key = _decode(numpy["state"]["key"]["data"], "<u4")
        torch_state, *cuda_states = map(_decode_tensor, [state["torch"], *state["cuda"]])
        mps_state = _decode_tensor(state["mps"]) if "mps" in state else None
        random.setstate((python["version"], words, python["gauss"]))
        np.random.set_state({**numpy, "state": {**numpy["state"], "key": key}})
        torch.set_rng_state(torch_state)
        num_devices = torch.cuda.device_count() if torch.cuda.is_available() else 0
        for index, one in enumerate(cuda_states[:num_devices]):
            torch.cuda.set_rng_state(one, index)
        if mps_state is not None and torch.backends.mps.is_available():
            torch.mps.set_rng_state(mps_state)
    except (LookupError, TypeError, ValueError, RuntimeError) as error:
        raise CheckpointError(
            f"the stored random state cannot be used ({type(error).__name__}: {error}); it is "
            f"damaged, or from another version of Python, NumPy or torch"
        ) from error
    if (missing := len(cuda_states) - num_devices) > 0:
        _log.warning("random states of %d CUDA devices not restored: no such devices", missing)


def _encode(array: np.ndarray[Any, Any]) -> str:
    return base64.b64encode(array.tobytes()).decode("ascii")


def _decode(text: str, dtype: str) -> np.ndarray[Any, Any]:
    return np.frombuffer(base64.b64decode(text, validate=True), dtype).copy()


def _decode_tensor(text: str) -> Tensor:
    return torch.from_numpy(_decode(text, "u1"))
