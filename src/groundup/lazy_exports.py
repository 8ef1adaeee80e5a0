"""Lazy imports of a package's names (PEP 562), so that importing the package is fast."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, file: str
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """Create `__getattr__`, `__dir__` and `__all__` of a package. The names are parsed from the
    lines `from module import name as name` that its file has for type checkers."""
    with open(file, encoding="utf-8") as lines:
        words = [line.split() for line in lines if line.startswith("    from ")]
    home_of = {name: home for _, home, _, _, _, name in words}

    def resolve(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(import_module(home_of[name]), name)
        setattr(sys.modules[package], name, value)
        return value

    return resolve, lambda: sorted(home_of), sorted(home_of)
