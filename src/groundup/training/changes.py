"""How the settings of a resumed run differ from those it began with, each difference by name."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from groundup.checkpoint import Checkpoint
from groundup.config import Settings, flatten
from groundup.errors import ConfigError
from groundup.runs.config import RunConfig

# What is only shown, and changes neither weights nor files that count.
_FREE = ("logging.",)

# A state of other settings than these cannot be loaded at all.
_FIXED = ("model.", "optimizer.name")
_FIXED_EXCEPT = ("model.kernels", "model.norm_eps", "model.rope_theta", "model.logit_soft_cap")


def differences(old: Settings, new: Settings) -> list[str]:
    """Every setting that is not the same, as "key: old -> new"."""
    return [f"{key}: {before!r} -> {after!r}" for key, before, after in _changed(old, new)]


def check_changes(old: RunConfig, new: RunConfig, *, allow_changes: bool) -> list[str]:
    """The differences between a run's settings and those it is resumed with.

    Raises ConfigError if there are any and `allow_changes` is not set, or if one makes the old
    weights useless. What is only shown may change at any time.
    """
    changed = list(_changed(old, new))
    fixed = [
        key for key, _, _ in changed if key.startswith(_FIXED) and not key.startswith(_FIXED_EXCEPT)
    ]
    if fixed:
        raise ConfigError(
            f"the run in {new.run_folder} has other settings: {'; '.join(differences(old, new))}. "
            f"Its weights cannot go on with another {fixed[0]}: begin a new run with another --name"
        )
    if not allow_changes and any(not key.startswith(_FREE) for key, _, _ in changed):
        raise ConfigError(
            f"the run in {new.run_folder} has other settings: {'; '.join(differences(old, new))}. "
            f"Resume with the settings it began with, or accept the changes with --allow-changes"
        )
    return differences(old, new)


def check_saved(file: Path, config: RunConfig, checkpoint: Checkpoint) -> None:
    """Raise ConfigError if a checkpoint was saved with other settings than its run has by now.

    A resume that takes its settings from the run folder finds nothing else to compare them with,
    and a digit may have flipped there.
    """
    saved = checkpoint.state.get("settings")
    before = dict(flatten(saved)) if isinstance(saved, dict) else {}
    for key, value in flatten(config.model_dump(mode="json")):
        if before.get(key, value) != value and not key.startswith(_FREE):
            raise ConfigError(
                f"{file} has {key}: {value!r}, but {checkpoint.path} was saved with "
                f"{before[key]!r}: put it back, or accept the change with --allow-changes"
            )


def _changed(old: Settings, new: Settings) -> Iterator[tuple[str, Any, Any]]:
    before = dict(flatten(old.model_dump(mode="json")))
    after = dict(flatten(new.model_dump(mode="json")))
    for key in dict.fromkeys([*before, *after]):
        if before.get(key) != after.get(key):
            yield key, before.get(key), after.get(key)
