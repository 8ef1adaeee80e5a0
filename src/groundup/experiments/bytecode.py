"""One place for compiled Python code where an installation has none.

Every trial is a process of its own and imports torch, some 2,500 files. Where no bytecode lies
beside them and none may be written, as in many containers, each process compiles all of them again:
ten seconds before a first step.
"""

import contextlib
import importlib.util
import os
import sys
import tempfile
from collections.abc import Iterator


@contextlib.contextmanager
def shared_bytecode() -> Iterator[dict[str, str]]:
    """Environment variables for processes that import the same modules.

    They name a folder that lives as long as the block, in which the first process leaves for the
    others what it compiled; there are none where bytecode is kept already.
    """
    if _is_kept("torch"):
        yield {}
        return
    with tempfile.TemporaryDirectory(
        prefix="groundup-bytecode-", ignore_cleanup_errors=True
    ) as folder:
        # An empty value counts as none.
        yield {"PYTHONPYCACHEPREFIX": folder, "PYTHONDONTWRITEBYTECODE": ""}


def _is_kept(package: str) -> bool:
    """Whether the package was compiled before, or will be kept when it is."""
    spec = importlib.util.find_spec(package)
    if spec is None or spec.origin is None:
        return True
    file = importlib.util.cache_from_source(spec.origin)
    if os.path.exists(file):
        return True
    if sys.dont_write_bytecode:
        return False
    folder = os.path.dirname(file)
    while folder and not os.path.exists(folder) and folder != os.path.dirname(folder):
        folder = os.path.dirname(folder)
    return os.path.isdir(folder) and os.access(folder, os.W_OK)
