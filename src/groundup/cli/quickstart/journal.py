"""What earlier runs of the quickstart did in its folder, so that finished steps are kept."""

from pathlib import Path
from typing import Any

from groundup.files import parse_json, write_json_atomic

_FILE_NAME = "quickstart.json"


class Journal:
    """Notes for each step the settings it was done with and the size of the file it wrote."""

    def __init__(self, folder: Path) -> None:
        self._file = folder / _FILE_NAME
        self._done = self._read()
        self.is_fresh = False
        """Whether a step had to be done anew: all that follow it have to be, too."""

    def can_keep(self, step: str, wanted: dict[str, Any], path: Path) -> bool:
        """Was this step, and were all before it, done with the same settings?"""
        size = path.stat().st_size if path.exists() else None
        if self._done.get(step) != {**wanted, "size": size}:
            self.is_fresh = True
        return not self.is_fresh

    def note(self, step: str, wanted: dict[str, Any], path: Path) -> None:
        """Write down that the step was done."""
        self._done[step] = {**wanted, "size": path.stat().st_size}
        write_json_atomic(self._file, self._done)

    def _read(self) -> dict[str, Any]:
        """Nothing, if the file is not there or cannot be read."""
        try:
            value = parse_json(self._file.read_bytes())
        except (OSError, ValueError):
            return {}
        return value if isinstance(value, dict) else {}
