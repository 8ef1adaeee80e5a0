"""The quickstart's folder: where things lie in it, and which steps were done with what settings."""

from pathlib import Path
from typing import Any

from groundup.files import parse_json, write_json_atomic


class QuickstartFolder:
    """Notes for each step the settings it was done with and the size of the file it wrote."""

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self.corpus = folder / "stories.txt"
        self.tokenizer = folder / "tokenizer.json"
        self.shards = folder / "shards"
        self.config = folder / "train.yaml"
        self.is_fresh = False
        """Whether a step had to be done anew: all that follow it have to be, too."""
        self._journal = folder / "quickstart.json"
        try:
            done = parse_json(self._journal.read_bytes())
        except (OSError, ValueError):
            done = {}
        self._done: dict[str, Any] = done if isinstance(done, dict) else {}

    def can_keep(self, step: str, wanted: dict[str, Any], path: Path) -> bool:
        """Was this step, and were all before it, done with the same settings?"""
        size = path.stat().st_size if path.exists() else None
        if self._done.get(step) != {**wanted, "size": size}:
            self.is_fresh = True
        return not self.is_fresh

    def note(self, step: str, wanted: dict[str, Any], path: Path) -> None:
        """Write down that the step was done."""
        self._done[step] = {**wanted, "size": path.stat().st_size}
        write_json_atomic(self._journal, self._done)
