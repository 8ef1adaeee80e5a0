"""Names of a package that are resolved on first use (PEP 562), so that importing it is cheap."""

import sys
from collections.abc import Callable
from importlib import import_module
from typing import Any


def lazy_exports(
    package: str, names_of: dict[str, str]
) -> tuple[Callable[[str], Any], Callable[[], list[str]], list[str]]:
    """The `__getattr__`, `__dir__` and `__all__` of a package whose names live in its modules.

    Type checkers see the names by imports of the form `import name as name`.

    names_of: the names that each module of it, or one of groundup by its whole name, gives.
    """
    home_of = {name: home for home, names in names_of.items() for name in names.split()}

    def resolve(name: str) -> Any:
        if name not in home_of:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        home = home_of[name]
        module = home if home.startswith("groundup.") else f"{package}.{home}"
        value = getattr(import_module(module), name)
        setattr(sys.modules[package], name, value)
        return value

    return resolve, lambda: sorted(home_of), sorted(home_of)
