"""A whole training state in one safetensors file or stream, without pickle.

Runs keep folders of checkpoints (see `folder`); this is for scripts and notebooks.
"""

import os
from typing import IO, Any

from torch import nn
from torch.optim import Optimizer

from groundup.checkpoint.restore import (
    check_model,
    check_optimizer,
    plain_model,
    restore_model,
    restore_optimizer,
)
from groundup.checkpoint.state_tree import load_tree, tree_stream
from groundup.checkpoint.weights import save_stream
from groundup.errors import CheckpointError

FORMAT = "groundup single-file checkpoint"

Target = str | os.PathLike[str] | IO[bytes]


def save_checkpoint(model: nn.Module, optimizer: Optimizer, iteration: int, out: Target) -> None:
    """Write the model, the state of any torch optimizer and the iteration to `out`.

    A path has the old file or the whole new one, even after a kill; a file object is written to
    from where it stands.
    """
    value = {
        "iteration": int(iteration),
        "model": plain_model(model).state_dict(),
        "optimizer": optimizer.state_dict(),
        "optimizer_name": type(optimizer).__name__,
        "parameter_shapes": _parameter_shapes(optimizer),
    }
    stream = tree_stream(value, FORMAT)
    if isinstance(out, str | os.PathLike):
        save_stream(out, stream)
        return
    try:
        for piece in stream:
            _write_all(out, piece)
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
    value = _load_value(src)
    try:
        check_model(model, value["model"])
        check_optimizer(optimizer, value["optimizer"])
        _check_parameters(optimizer, value)
        iteration = int(value["iteration"])
    except (LookupError, TypeError, ValueError) as error:
        raise CheckpointError(f"{_name_of(src)} is damaged: {error!r} among its values") from error
    restore_model(model, value["model"])
    restore_optimizer(optimizer, value["optimizer"])
    return iteration


def _load_value(src: Target) -> Any:
    if isinstance(src, str | os.PathLike):
        return load_tree(src, FORMAT)
    try:
        data = src.read()
    except AttributeError as error:
        raise CheckpointError(f"{src!r} is neither a path nor a file to read from") from error
    if not isinstance(data, bytes | bytearray):
        raise CheckpointError(f"{_name_of(src)} gives text: open the file in binary mode ('rb')")
    if not data:
        raise CheckpointError(
            f"nothing is left to read in {_name_of(src)}: is it empty, or did it just get written "
            f"and needs seek(0)?"
        )
    return load_tree(bytes(data), FORMAT, _name_of(src))


def _check_parameters(optimizer: Optimizer, value: Any) -> None:
    own_name, own_shapes = type(optimizer).__name__, _parameter_shapes(optimizer)
    name, shapes = value["optimizer_name"], value["parameter_shapes"]
    own_options = [set(group) for group in optimizer.param_groups]
    if name != own_name and [set(one) for one in value["optimizer"]["param_groups"]] != own_options:
        raise CheckpointError(
            f"the checkpoint's optimizer is {name}, this one is {own_name}: build the kind that it "
            f"was saved with"
        )
    if shapes != own_shapes:
        raise CheckpointError(
            f"the checkpoint's optimizer has parameters of the shapes {shapes!s:.200}, this one "
            f"of {own_shapes!s:.200}: build it over the same parameters in the same order"
        )


def _parameter_shapes(optimizer: Optimizer) -> list[list[list[int]]]:
    return [[list(one.shape) for one in group["params"]] for group in optimizer.param_groups]


def _write_all(out: IO[bytes], piece: bytes | memoryview) -> None:
    """Unbuffered files may take a part of what they are given."""
    view = memoryview(piece)
    while view:
        num_written = out.write(view)
        view = view[len(view) if num_written is None else num_written :]


def _name_of(src: Target) -> str:
    if isinstance(src, str | os.PathLike):
        return os.fspath(src)
    name = getattr(src, "name", None)
    return name if isinstance(name, str) else f"the {type(src).__name__}"
