"""Putting stored states back into a model and an optimizer, or saying what does not fit.

A state that does not fit is refused before anything is changed.
"""

from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn
from torch.optim import Optimizer

from groundup.errors import CheckpointError

_MAX_NAMES_SHOWN = 8
# Options that schedulers and torch put into groups; they do not tell the kind of an optimizer.
_ADDED_BY_OTHERS = {"initial_lr", "param_names"}


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
    """Raise a CheckpointError that lists the names and shapes that differ."""
    own = plain_model(model).state_dict()
    check_shapes(
        {name: tuple(value.shape) for name, value in own.items()},
        {name: tuple(value.shape) for name, value in state.items()},
    )


def check_shapes(
    expected: Mapping[str, tuple[int, ...]], stored: Mapping[str, tuple[int, ...]]
) -> None:
    """`check_model` by the shapes alone, before a model is built or a file is read."""
    if differences := shape_differences(expected, stored):
        raise CheckpointError(
            f"the checkpoint belongs to another model: {differences}; build the model with the "
            f"settings that it was trained with"
        )


def shape_differences(
    expected: Mapping[str, tuple[int, ...]], stored: Mapping[str, tuple[int, ...]]
) -> str:
    """What `stored` lacks, has too much or in another shape; empty if all is as `expected`."""
    complaints = []
    if missing := [name for name in expected if name not in stored]:
        complaints.append(f"the checkpoint lacks {_enumerate(missing)}")
    if unknown := [name for name in stored if name not in expected]:
        complaints.append(f"the model has no {_enumerate(unknown)}")
    differing = [
        f"{name} (checkpoint {stored[name]}, model {shape})"
        for name, shape in expected.items()
        if name in stored and stored[name] != shape
    ]
    if differing:
        complaints.append(f"the shapes differ of {_enumerate(differing)}")
    return "; ".join(complaints)


def check_optimizer(optimizer: Optimizer, state: Mapping[str, Any]) -> None:
    """Raise a CheckpointError when the groups of parameters or their options differ."""
    try:
        groups, states = state["param_groups"], state["state"].values()
        stored = [len(group["params"]) for group in groups]
        if not all(isinstance(one, dict) for one in (*groups, *states)):
            raise TypeError("not a dict")
    except (LookupError, TypeError, AttributeError) as error:
        raise CheckpointError(
            f"the checkpoint's optimizer state is not that of a torch optimizer ({error!r})"
        ) from None
    if not stored:
        raise CheckpointError(
            "the checkpoint has no optimizer state, like any imported or saved model: it cannot be "
            "resumed; begin a new run from it with --from"
        )
    own = [len(group["params"]) for group in optimizer.param_groups]
    if stored != own:
        raise CheckpointError(
            f"the checkpoint's optimizer has groups of {stored} parameters, this one of {own}: "
            f"build it over the same model, with the same weight decay of embeddings"
        )
    for theirs, ours in zip(groups, optimizer.param_groups, strict=True):
        lacking = [name for name in ours if name not in {*theirs, *_ADDED_BY_OTHERS}]
        unknown = [name for name in theirs if name not in {*ours, *_ADDED_BY_OTHERS}]
        if lacking and unknown:
            raise CheckpointError(
                f"the checkpoint is of another kind of optimizer than {type(optimizer).__name__}: "
                f"it lacks {_enumerate(lacking)} and has {_enumerate(unknown)}"
            )


def plain_model(model: nn.Module) -> nn.Module:
    """The module inside what `torch.compile` returns, whose names have no prefix."""
    inner = getattr(model, "_orig_mod", model)
    return inner if isinstance(inner, nn.Module) else model


def _enumerate(names: list[str]) -> str:
    shown = ", ".join(names[:_MAX_NAMES_SHOWN])
    rest = len(names) - _MAX_NAMES_SHOWN
    return f"{shown} and {rest} more" if rest > 0 else shown
