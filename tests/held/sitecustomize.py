"""Read by the processes that a test starts under `hold` of conftest.py: they stop where it says.

A test that waits for such a stop finds the process at work however long it was kept from looking.
"""

import functools
import importlib
import os
import time
from pathlib import Path
from typing import Any


def hold(place: str, stopped: Path, released: Path) -> None:
    """Stop behind the first call of `place`, "module:name", until `released` is there."""
    module, _, names = place.partition(":")
    *owners, name = names.split(".")
    owner = functools.reduce(getattr, owners, importlib.import_module(module))
    work = getattr(owner, name)

    def work_and_stop(*arguments: Any, **options: Any) -> Any:
        result = work(*arguments, **options)
        stopped.touch()
        while not released.exists():
            time.sleep(0.01)
        return result

    setattr(owner, name, work_and_stop)


stopped, released = Path(os.environ["HOLD_STOPPED"]), Path(os.environ["HOLD_RELEASED"])
if not released.exists():
    hold(os.environ["HOLD"], stopped, released)
