"""A study read back from the JSON that it was written to, so that its page can be made anew."""

from pathlib import Path

from pydantic import TypeAdapter, ValidationError

from groundup.errors import DataError
from groundup.experiments.temperatures.study import TemperatureStudy


def read_study(path: Path) -> TemperatureStudy:
    """The study in a file that `groundup temperatures --out` wrote."""
    try:
        text = path.read_bytes()
    except OSError as error:
        raise DataError(f"{path} cannot be read: {error.strerror}") from error
    try:
        study = TypeAdapter(TemperatureStudy).validate_json(text)
    except ValidationError as error:
        where = ".".join(map(str, error.errors()[0]["loc"])) or "its beginning"
        raise DataError(
            f"{path} is no study of temperatures (at {where}: {error.errors()[0]['msg']}): give a "
            f"file that groundup temperatures --out wrote, or runs"
        ) from error
    if not study.runs or not all(run.results for run in study.runs):
        raise DataError(f"{path} holds no texts: give one that groundup temperatures --out wrote")
    return study
