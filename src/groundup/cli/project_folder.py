"""The folder of `groundup new`: where things lie in it, and what was made from what."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from groundup.files import parse_json, write_json_atomic


class ProjectFolder:
    """Notes for each file what it was made from, and its size."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.config = folder / "train.yaml"
        self.tokenizer = folder / "tokenizer.json"
        self.shards = folder / "shards"
        self.is_fresh = False
        """Whether something had to be made anew: all that follows from it has to be, too."""
        self._journal = folder / "new.json"
        try:
            done = parse_json(self._journal.read_bytes())
        except (OSError, ValueError):
            done = {}
        self._done: dict[str, Any] = done if isinstance(done, dict) else {}

    @contextlib.contextmanager
    def keeping(self, path: Path, wanted: dict[str, Any]) -> Iterator[bool]:
        """Gives whether the file, and all before it, are there as wanted; else the block makes it.

        path: the file.
        wanted: what it is made from.
        """
        if self.note(path.name) != {**wanted, "size": _size(path)}:
            self.is_fresh = True
        yield not self.is_fresh
        if self.is_fresh:
            self.write_note(path.name, {**wanted, "size": _size(path)})

    def note(self, name: str) -> Any:
        """What is noted under a name; None if nothing is."""
        return self._done.get(name)

    def write_note(self, name: str, value: Any) -> None:
        self._done[name] = value
        write_json_atomic(self._journal, self._done)


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.exists() else None
