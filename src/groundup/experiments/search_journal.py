"""What Optuna's journal in a sweep's folder says, read from a copy: reading writes nothing here."""

import shutil
import tempfile
from pathlib import Path

from groundup.errors import ConfigError, GroundupError
from groundup.experiments.optuna_sampler import JOURNAL_NAME, OptunaSampler
from groundup.experiments.proposals import VARIANT, import_packages
from groundup.experiments.spec import SweepConfig
from groundup.experiments.trials import Point, Trial, make_trial


def search_trials(spec: SweepConfig, path: Path, runs_folder: Path) -> tuple[list[Trial], int]:
    """The trials of the points that were proposed so far, and how many points are still to come.

    A proposal that cannot be built has no trials; the sweep leaves it out too.
    """
    points = proposed_points(spec, path)
    trials: dict[str, Trial] = {}
    for point in points:
        for seed in spec.seeds:
            try:
                trial = make_trial(spec, point, seed, runs_folder)
            except ConfigError:
                break
            trials[trial.name] = trial
    assert spec.num_trials is not None
    return list(trials.values()), max(0, spec.num_trials - len(points))


def proposed_points(spec: SweepConfig, path: Path) -> list[Point]:
    """All points of the journal; an error, as the sweep has it, where it is another search's."""
    optuna = import_packages(spec.sampler)
    journal = path / JOURNAL_NAME
    if not journal.exists():
        return []
    with tempfile.TemporaryDirectory() as folder:
        copy = Path(folder) / JOURNAL_NAME
        shutil.copyfile(journal, copy)
        try:
            OptunaSampler(spec, copy.parent)
        except GroundupError as error:
            raise type(error)(str(error).replace(str(copy), str(journal))) from error
        backend = optuna.storages.journal.JournalFileBackend(str(copy))
        storage = optuna.storages.JournalStorage(backend)
        study = optuna.load_study(study_name=spec.name, storage=storage)
        found = study.get_trials(deepcopy=False)
    names = {*spec.grid, *spec.ranges, *([VARIANT] if spec.variants else [])}
    points = []
    for one in found:
        # An attribute marks the second entry of a point that failed first; a kill between a
        # proposal and its values left one without them.
        if not one.user_attrs and one.params.keys() == names:
            values = dict(one.params)
            variant = values.pop(VARIANT, None)
            points.append(Point(values, variant))
    return points
