"""Putting stored states back into a model and an optimizer, or saying what does not fit.

A state that does not fit is refused before anything is changed.
"""

import textwrap
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from groundup.errors import CheckpointError


def restore_model(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Copy a state of `plain_model(model).state_dict()` into the model's tensors."""
    check_model(model, state)
    plain_model(model).load_state_dict(state)


def restore_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Load a state of `optimizer.state_dict()`, to the bit.

    torch converts what an optimizer keeps to the type of the weights, so float32 averages of
    bfloat16 weights would be rounded; here they are not. Options that the state lacks, because it
    is of an earlier version, stay as the optimizer has them.
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
    """`check_shapes` for the weights of a model."""
    own = plain_model(model).state_dict()
    check_shapes({name: tuple(value.shape) for name, value in own.items()}, state)


def check_shapes(expected: Mapping[str, tuple[int, ...]], state: Mapping[str, Tensor]) -> None:
    """Raise a CheckpointError that lists the names and shapes that differ."""
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
            f"that it was trained with"
        )


def check_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Raise a CheckpointError when the groups of parameters differ."""
    try:
        stored = [len(group["params"]) for group in state["param_groups"]]
        if not all(isinstance(one, dict) for one in state["state"].values()):
            raise TypeError("not a dict")
    except (LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(f"the checkpoint's optimizer state is damaged ({error!r})") from None
    own = [len(group["params"]) for group in optimizer.param_groups]
    if stored != own:
        raise CheckpointError(
            f"the checkpoint's optimizer has groups of {stored} parameters, this one of {own}: "
            f"build it over the same model, with the same weight decay of embeddings; a checkpoint "
            f"without groups, like an imported model's, only starts a new run, with --from"
        )


def plain_model(model: nn.Module) -> nn.Module:
    """The module inside what `torch.compile` returns, whose names have no prefix."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model
