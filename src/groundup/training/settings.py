"""The settings of a run from what a person gave: defaults, then a recipe, a file, and flags.

Without a file the recipe fits the shards and the time; with `minutes` the clock decides the length,
and what a file counts in steps becomes a fraction of the run.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from groundup.config import flatten, load_settings, load_yaml
from groundup.data.shards import ShardIndex, find_index
from groundup.errors import ConfigError
from groundup.runs.config import RunConfig, in_fractions
from groundup.runs.folder import RunFolder
from groundup.training.machine import find_peak
from groundup.training.recipe import GUESSED_UTILIZATION, choose_recipe
from groundup.training.resolve import resolve_device
from groundup.training.start import settings_from

# What the settings of a run without a file and without minutes are chosen for.
_USUAL_MINUTES = 10.0


def make_config(
    given: Mapping[str, Any], *, file: Path | None = None, source: RunFolder | None = None
) -> RunConfig:
    """The settings of a new run.

    given: what a person chose, by dotted name. file: a YAML file of settings, which go after those.
    source: the run whose weights it begins with; its model and tokenizer are taken over.
    """
    in_file = dict(flatten(load_yaml(file))) if file is not None else {}
    found = {} if source is None else settings_from(source)
    if "model.vocab_size" not in found:
        data = load_settings(RunConfig, file, given).data
        # Where there are no shards to be read, training says what is wrong with them.
        index = find_index(data.shards)
        if index is not None:
            found |= {} if file is not None else _recipe_for(index, given)
            found["model.vocab_size"] = index.vocab_size
    values = {name: value for name, value in found.items() if name not in in_file} | dict(given)
    if given.get("minutes") is not None and given.get("num_steps") is None:
        counted = load_settings(RunConfig, file, {**values, "minutes": None, "epochs": None})
        values |= in_fractions(counted, given)
        values |= {"num_steps": None, "epochs": values.get("epochs")}
    return load_settings(RunConfig, file, values)


def _recipe_for(index: ShardIndex, given: Mapping[str, Any]) -> dict[str, Any]:
    """Sizes that fit the data and the time."""
    try:
        device = {"device": given.get("device", "auto")}
        config = resolve_device(load_settings(RunConfig, overrides=device))
    except ConfigError:
        # Training says what is wrong with it.
        return {}
    minutes = float(given.get("minutes") or _USUAL_MINUTES)
    d_model, num_steps = given.get("model.d_model"), given.get("num_steps")
    split = index.splits["train"]
    recipe = choose_recipe(
        flops=GUESSED_UTILIZATION * (find_peak(config) or 1e11) * 60 * minutes,
        num_tokens=max(1, split.num_ids),
        vocab_size=index.vocab_size,
        d_model=None if d_model is None else int(d_model),
        document_bytes=split.num_bytes // max(1, split.num_documents),
        max_steps=None if num_steps is None else int(num_steps),
        is_on_cpu=config.device == "cpu",
    )
    values = recipe.config.model_dump(exclude_defaults=True)
    values.pop("samples", None)
    if given.get("optimizer.name") not in (None, recipe.config.optimizer.name):
        # Its rates suit no other.
        del values["optimizer"]
    return dict(flatten(values))
