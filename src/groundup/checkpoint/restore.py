"""Restore stored states into a model and an optimizer.

A state that does not match raises CheckpointError before anything is changed.
"""

import textwrap
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from groundup.errors import CheckpointError


def restore_model(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Load a `plain_model(model).state_dict()` into the model."""
    check_model(model, state)
    plain_model(model).load_state_dict(state)


def restore_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Load an `optimizer.state_dict()` bitwise.

    torch would cast the state to the dtype of the weights, which rounds the float32 averages of
    bfloat16 weights; this does not. Options missing from the state, which may be from an earlier
    version, keep the optimizer's values.
    """
    check_optimizer(optimizer, state)
    options = [{**group, "params": []} for group in optimizer.param_groups]
    groups = [{**own, **stored} for own, stored in zip(options, state["param_groups"], strict=True)]
    optimizer.load_state_dict({"state": state["state"], "param_groups": groups})
    parameters = [one for group in optimizer.param_groups for one in group["params"]]
    indices = [index for group in groups for index in group["params"]]
    for index, parameter in zip(indices, parameters, strict=True):
        for key, stored in state["state"].get(index, {}).items():
            loaded = optimizer.state[parameter].get(key)
            if key == "step" or not isinstance(loaded, Tensor) or not isinstance(stored, Tensor):
                continue
            if loaded.dtype != stored.dtype:
                optimizer.state[parameter][key] = stored.to(loaded.device, copy=True)


def check_model(model: nn.Module, state: Mapping[str, Tensor]) -> None:
    """Apply `check_shapes` to the weights of a model."""
    own = plain_model(model).state_dict()
    check_shapes({name: tuple(value.shape) for name, value in own.items()}, state)


def check_shapes(expected: Mapping[str, tuple[int, ...]], state: Mapping[str, Tensor]) -> None:
    """Raise CheckpointError with the names and shapes that differ, if any."""
    stored = {name: tuple(value.shape) for name, value in state.items()}
    different = [
        f"{name} ({stored.get(name, 'missing')} instead of {expected.get(name, 'nothing')})"
        for name in {**expected, **stored}
        if stored.get(name) != expected.get(name)
    ]
    if different:
        raise CheckpointError(
            f"the checkpoint belongs to another model: it has "
            f"{textwrap.shorten(', '.join(different), 1_000)}; build the model with the settings "
            f"it was trained with"
        )


def check_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Raise CheckpointError if the sizes of the parameter groups differ."""
    try:
        stored = [len(group["params"]) for group in state["param_groups"]]
        if not all(isinstance(one, dict) for one in state["state"].values()):
            raise TypeError("not a dict")
    except (LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"the checkpoint's optimizer state is damaged ({error!r})") from None
    own = [len(group["params"]) for group in optimizer.param_groups]
    if stored != own:
        raise CheckpointError(
            f"the checkpoint's optimizer has groups of {stored} parameters, but this one of {own}; "
            f"build it for the same model, with the same weight decay of embeddings. A checkpoint "
            f"without groups, such as an imported model's, can only start a new run, with --from"
        )


def plain_model(model: nn.Module) -> nn.Module:
    """Unwrap the result of `torch.compile`, whose parameter names have a prefix."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model
