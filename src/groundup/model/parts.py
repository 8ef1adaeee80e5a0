"""Custom parts that a program adds to a model or a run, identified by a hash of their source.

Settings do not describe them, so a run records them, and opening it requires the same parts.
"""

import functools
import inspect
import types
from typing import Any

from torch import nn

from groundup.files import hash_bytes
from groundup.model.transformer import TransformerLM

# Module attributes that only affect training.
_NOT_MEANING = {"training", "float8_inputs", "_has_float8_output"}
# Classes of these packages are identified by name.
_LIBRARIES = ("torch.", "groundup.")


def identify(part: Any) -> str:
    """Return the qualified name of a module, class or function and a hash of its source: equal for
    equal source, wherever it is defined."""
    if isinstance(part, functools.partial):
        content = repr((part.args, sorted(part.keywords.items()), identify(part.func)))
        return f"{_name_of(part.func)} {hash_bytes(content.encode())}"
    kind = part if isinstance(part, type) or inspect.isroutine(part) else type(part)
    content = _content_of(kind)
    if isinstance(part, nn.Module):
        inner = [(name, describe_module(one)) for name, one in part.named_modules()]
        content = repr([(name, _content_of(one[0]), *one[1:]) for name, one in inner])
    return f"{_name_of(kind)} {hash_bytes(content.encode())}"


def swapped_parts(model: TransformerLM) -> dict[str, str]:
    """Return the modules that differ from those built from the settings, by path:
    model/blocks/0/attention. Slashes, because a dot in a setting's name separates sections.
    """
    built = dict(TransformerLM.from_config(model.config, device="meta").named_modules())
    found: dict[str, str] = {}
    for name, module in model.named_modules():
        path = f"model/{name}".replace(".", "/").rstrip("/")
        if any(path.startswith(f"{outer}/") for outer in found):
            continue
        if name not in built or describe_module(module) != describe_module(built[name]):
            found[path] = identify(module)
    return found


def describe_module(module: nn.Module) -> tuple[type, dict[str, object], bool]:
    """Return a module's type, its plain attributes, and whether it has a hook or its own forward:
    with weights and children, they determine what it computes."""
    values: dict[str, object] = {
        name: value
        for name, value in vars(module).items()
        if isinstance(value, int | float | str) and name not in _NOT_MEANING
    }
    has_hook = bool(module._forward_hooks or module._forward_pre_hooks)
    return type(module), values, has_hook or "forward" in vars(module)


def _content_of(kind: Any) -> str:
    """The source of a function, or of a class and its bases; for library code, the name."""
    own = [one for one in getattr(kind, "__mro__", (kind,)) if not _is_library(one)]
    return repr([_source_of(one) for one in own] or _name_of(kind))


def _source_of(kind: Any) -> str:
    """The source of a class or function; its name if there is no source, as in some consoles."""
    if getattr(kind, "__name__", "") == "<lambda>":
        return _bytecode_of(kind.__code__)
    try:
        return inspect.getsource(kind)
    except (OSError, TypeError):
        return _name_of(kind)


def _bytecode_of(code: types.CodeType) -> str:
    """Identify a lambda, whose source would include the statement around it."""
    constants = [
        _bytecode_of(one) if isinstance(one, types.CodeType) else repr(one)
        for one in code.co_consts
    ]
    return repr((code.co_code, code.co_names, constants))


def _is_library(kind: Any) -> bool:
    return f"{kind.__module__}.".startswith(_LIBRARIES)


def _name_of(kind: Any) -> str:
    return f"{kind.__module__}.{getattr(kind, '__qualname__', type(kind).__qualname__)}"
