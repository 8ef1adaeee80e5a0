"""A whole training state in one safetensors file or stream, without pickle.

Runs keep folders of checkpoints (see `folder`); this is for scripts and notebooks.
"""

import os
from typing import IO

from torch import nn
from torch.optim import Optimizer

from groundup.checkpoint.restore import (
    check_model,
    check_optimizer,
    plain_model,
    restore_model,
    restore_optimizer,
)
from groundup.checkpoint.state_tree import pack_tree, unpack_tree
from groundup.checkpoint.weights import (
    read_weights,
    save_weights,
    weights_from_bytes,
    weights_to_bytes,
)
from groundup.errors import CheckpointError

Target = str | os.PathLike[str] | IO[bytes]


def save_checkpoint(model: nn.Module, optimizer: Optimizer, iteration: int, out: Target) -> None:
    """Write the model, the state of any torch optimizer and the iteration to `out`.

    A path has the old file or the whole new one, even after a kill; a file object is written to
    from its position.
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
    data = memoryview(weights_to_bytes(tensors, metadata))
    try:
        while data:  # Unbuffered files may take a part of what they are given.
            num_written = out.write(data)
            data = data[len(data) if num_written is None else num_written :]
    except (TypeError, AttributeError) as error:
        raise CheckpointError(
            f"a checkpoint cannot be written to {out!r}: open the file in binary mode ('wb')"
        ) from error


def load_checkpoint(src: Target, model: nn.Module, optimizer: Optimizer) -> int:
    """Put a saved state into `model` and `optimizer`; return the iteration.

    A file that is not one of `save_checkpoint` and a state that does not fit are refused with a
    CheckpointError before anything is changed.

    src: a path, or a file open for reading.
    """
    name = str(src if isinstance(src, str | os.PathLike) else getattr(src, "name", src))
    if isinstance(src, str | os.PathLike):
        tensors, metadata = read_weights(src)
    else:
        data = src.read() if hasattr(src, "read") else None
        if not isinstance(data, bytes | bytearray) or not data:
            raise CheckpointError(
                f"nothing can be read from {name}: open the file in binary mode ('rb'), and call "
                f"seek(0) if it was just written"
            )
        tensors, metadata = weights_from_bytes(bytes(data), name)
    value = unpack_tree(tensors, metadata, name)
    try:
        check_model(model, value["model"])
        check_optimizer(optimizer, value["optimizer"])
        iteration = int(value["iteration"])
        stored = value["optimizer_name"], value["parameter_shapes"]
        own = type(optimizer).__name__, _parameter_shapes(optimizer)
    except (LookupError, TypeError, ValueError, AttributeError) as error:
        raise CheckpointError(f"{name} is damaged: {error!r} among its values") from error
    if stored != own:
        raise CheckpointError(
            f"the checkpoint's optimizer is {stored!s:.200}, this one is {own!s:.200}: build the "
            f"same kind over the same parameters in the same order"
        )
    restore_model(model, value["model"])
    restore_optimizer(optimizer, value["optimizer"])
    return iteration


def _parameter_shapes(optimizer: Optimizer) -> list[list[list[int]]]:
    return [[list(one.shape) for one in group["params"]] for group in optimizer.param_groups]
