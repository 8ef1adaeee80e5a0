"""Runs as a person names them on the command line: by folder, or by name under `runs`."""

from pathlib import Path

from groundup.errors import ConfigError, did_you_mean
from groundup.runs.folder import RunFolder

RUNS_FOLDER = Path("runs")


def find_run(run: str) -> Path:
    """The folder of a run; a ConfigError that offers the nearest name if there is none."""
    for folder in (Path(run), RUNS_FOLDER / run):
        if RunFolder(folder).has_run():
            return folder
    if Path(run).is_dir():
        raise ConfigError(f"{run} is not a run folder: it has no config.yaml")
    names = sorted(path.name for path in RUNS_FOLDER.glob("*") if RunFolder(path).has_run())
    beside = Path(run).parent
    if beside != Path():
        names += sorted(str(path) for path in beside.glob("*") if RunFolder(path).has_run())
    raise ConfigError(
        f"run {run} does not exist, neither as a folder nor in {RUNS_FOLDER}: "
        f"{did_you_mean(run, names)}"
    )
