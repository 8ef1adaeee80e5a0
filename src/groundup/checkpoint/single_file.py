"""A full training state in one safetensors file or stream, without pickle.

For scripts and notebooks; runs use a folder of checkpoints (see `folder`).
"""

import os
import shutil
import tempfile
from typing import IO

from torch import nn
from torch.optim import Optimizer

from groundup.checkpoint.record import pack_tree, unpack_tree
from groundup.checkpoint.restore import (
    check_model,
    check_optimizer,
    plain_model,
    restore_model,
    restore_optimizer,
)
from groundup.checkpoint.weights import read_weights, save_weights
from groundup.errors import CheckpointError

Target = str | os.PathLike[str] | IO[bytes]


def save_checkpoint(model: nn.Module, optimizer: Optimizer, iteration: int, out: Target) -> None:
    """Write the states of the model and of any torch optimizer, and the iteration, to `out`.

    A path is replaced atomically; a file object is written to from its current position.
    """
    tensors, metadata = pack_tree(
        {
            "iteration": int(iteration),
            "model": plain_model(model).state_dict(),
            "optimizer": optimizer.state_dict(),
            "optimizer_name": type(optimizer).__name__,
            "parameter_shapes": _parameter_shapes(optimizer),
        }
    )
    if isinstance(out, str | os.PathLike):
        save_weights(out, tensors, metadata)
        return
    with tempfile.TemporaryDirectory() as folder:
        save_weights(f"{folder}/checkpoint", tensors, metadata)
        with open(f"{folder}/checkpoint", "rb") as file:
            shutil.copyfileobj(file, out)


def load_checkpoint(src: Target, model: nn.Module, optimizer: Optimizer) -> int:
    """Load a saved state into `model` and `optimizer`; returns the iteration.

    Raises CheckpointError, before anything is changed, if the file is not from `save_checkpoint` or
    the state does not match.
    """
    if not isinstance(src, str | os.PathLike):
        with tempfile.NamedTemporaryFile() as file:
            shutil.copyfileobj(src, file)
            if file.tell() == 0:
                raise CheckpointError(f"nothing can be read from {src!r}; call seek(0) first")
            file.flush()
            return load_checkpoint(file.name, model, optimizer)
    name = os.fspath(src)
    tensors, metadata = read_weights(src)
    value = unpack_tree(tensors, metadata, name)
    try:
        check_model(model, value["model"])
        check_optimizer(optimizer, value["optimizer"])
        iteration = int(value["iteration"])
        stored = value["optimizer_name"], value["parameter_shapes"]
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{name} is damaged: it has an invalid value: {error!r}") from error
    own = type(optimizer).__name__, _parameter_shapes(optimizer)
    if stored != own:
        raise CheckpointError(
            f"the checkpoint's optimizer is {stored!s:.200}, but this one is {own!s:.200}; build "
            f"the same type with the same parameters in the same order"
        )
    restore_model(model, value["model"])
    restore_optimizer(optimizer, value["optimizer"])
    return iteration


def _parameter_shapes(optimizer: Optimizer) -> list[list[list[int]]]:
    return [[list(one.shape) for one in group["params"]] for group in optimizer.param_groups]
