"""`groundup --version`: what a bug report needs. A part that is missing or broken says why."""

import platform
from collections.abc import Callable, Iterator


def version_lines() -> Iterator[str]:
    """Version, Python, vector level of the native core, torch and device. The last two import
    torch, which takes seconds."""
    from groundup import __version__

    yield f"groundup {__version__}"
    yield f"python   {platform.python_version()}, {platform.system()} {platform.machine()}"
    for name, find in (("native", _native), ("torch", _torch), ("device", _device)):
        yield f"{name:<8} {_found(find)}"


def _found(find: Callable[[], str]) -> str:
    try:
        return find()
    # A torch of another machine raises whatever its loader does.
    except Exception as error:
        return f"not usable: {error}"


def _native() -> str:
    from groundup.tokenizer.native import vectors

    used, supported = vectors()
    return f"{used} (of {', '.join(supported)})"


def _torch() -> str:
    import torch

    return torch.__version__


def _device() -> str:
    from groundup.training.machine import Machine

    machine = Machine.detect()
    return f"{machine.device}: {machine.name}"
