"""The quickstart's folder: where things lie in it, and which steps were done with what settings."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from groundup.files import parse_json, write_json_atomic


class QuickstartFolder:
    """Notes for each file the settings it was made with, and its size."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.corpus = folder / "stories.txt"
        self.tokenizer = folder / "tokenizer.json"
        self.shards = folder / "shards"
        self.config = folder / "train.yaml"
        self.run = folder / "runs" / "stories"
        self.is_fresh = False
        """Whether a step had to be done anew: all that follow it have to be, too."""
        self._journal = folder / "quickstart.json"
        try:
            done = parse_json(self._journal.read_bytes())
        except (OSError, ValueError):
            done = {}
        self._done: dict[str, Any] = done if isinstance(done, dict) else {}

    @contextlib.contextmanager
    def keeping(self, path: Path, wanted: dict[str, Any]) -> Iterator[bool]:
        """Gives whether the file, and all before it, are there as wanted; else the block makes it.

        path: the file.
        wanted: the settings to make it with.
        """
        size = path.stat().st_size if path.exists() else None
        if self._done.get(path.name) != {**wanted, "size": size}:
            self.is_fresh = True
        yield not self.is_fresh
        if self.is_fresh:
            self._done[path.name] = {**wanted, "size": path.stat().st_size}
            write_json_atomic(self._journal, self._done)
