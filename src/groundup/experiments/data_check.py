"""Are the shards and tokenizers there that trials name? Asked before the first of them starts."""

from collections.abc import Iterator
from pathlib import Path

from groundup.data.shards import read_index
from groundup.errors import DataError
from groundup.experiments.spec import SweepConfig, base_config
from groundup.experiments.sweep_folder import SweepFolder
from groundup.experiments.trials import Trial

SHARDS, TOKENIZER = "data.shards", "data.tokenizer"


def check_data(folder: SweepFolder, trials: list[Trial]) -> None:
    """Raise for the first trial still to run whose data are missing; what has ended needs none."""
    states, known = folder.states(trials), set[tuple[str, Path]]()
    for trial in folder.left(trials):
        data = trial.config.data
        needed = [(SHARDS, data.shards)]
        if states[trial.name] == "to run":
            # One that has begun carries its own copy.
            needed.append((TOKENIZER, data.tokenizer))
        for setting, path in needed:
            if (setting, path) not in known:
                _check(setting, path, f"trial {trial.name}")
                known.add((setting, path))


def check_search_data(spec: SweepConfig) -> None:
    """The same for a search, whose trials are not known: for all that it may propose."""
    for setting, path in _data_of(spec):
        _check(setting, path, f"the sweep {spec.name}")


def _data_of(spec: SweepConfig) -> Iterator[tuple[str, Path]]:
    data = base_config(spec).data
    bundles = list(spec.variants.values())
    for setting, path in ((SHARDS, data.shards), (TOKENIZER, data.tokenizer)):
        chosen = [*spec.grid.get(setting, []), *(b[setting] for b in bundles if setting in b)]
        is_always_chosen = setting in spec.grid or (bundles and all(setting in b for b in bundles))
        yield from ((setting, Path(value)) for value in chosen)
        if not is_always_chosen:
            yield setting, path


def _check(setting: str, path: Path, whose: str) -> None:
    if setting == SHARDS:
        try:
            read_index(path)
        except DataError as error:
            raise DataError(f"{setting} of {whose}: {error}") from error
    elif not path.is_file():
        what = "is no file" if path.exists() else "is not there"
        raise DataError(
            f"{setting} of {whose}: {path} {what}; name the tokenizer of the shards, or make one "
            f"with groundup tokenizer train"
        )
