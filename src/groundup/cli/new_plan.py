"""The plan of `groundup new`: a look at the text, a probe of the machine, settings with reasons."""

import json
import shlex
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from groundup.cli.project_folder import ProjectFolder
from groundup.cli.shared import ReadingFlags
from groundup.errors import ConfigError, DataError
from groundup.runtime import count_of, format_duration
from groundup.text_files import Source

if TYPE_CHECKING:
    from groundup.cli.new import Arguments
    from groundup.data.survey import Survey
    from groundup.training.recipe import Recipe

# Kept of the time for the evaluation and the samples at the end.
_LAST_FRACTION, _LAST_MINUTES = 0.04, 0.5
_VALIDATION_BYTES = 300_000
_FEW_BYTES = 20_000
# The most of the time that reading the text may take, and what it takes where all is well.
_MOST_READING, _USUAL_READING = 0.7, 0.3
_MANY_FILES = 10_000


@dataclass(frozen=True)
class Project:
    """What is to be made, of what, and where."""

    arguments: "Arguments"
    name: str
    folder: ProjectFolder
    runs_folder: Path
    started: float
    """What --minutes counts from, as time.monotonic tells it."""
    prompts: tuple[str, ...] = ()
    """What the samples continue; beginnings of documents if empty."""

    @property
    def named_after(self) -> str:
        """The input that gives the name if none is given: others may have the same."""
        from groundup.text_files import path_text

        return path_text(Path(self.arguments.files[0]).resolve())

    @property
    def reading_words(self) -> list[str]:
        """The flags that say how text is read, where they are not the usual ones."""
        usual = ReadingFlags()
        return [
            word
            for name, value in self.arguments.reading.items()
            if value != getattr(usual, name)
            for word in (f"--{name}", value)
        ]


def write_plan(project: Project, sources: Sequence[Source]) -> None:
    """Look, choose, say why, and leave the settings behind."""
    from groundup.cli.terminal import print_results
    from groundup.config import as_yaml
    from groundup.data.survey import survey_text
    from groundup.files import write_text_atomic
    from groundup.text_files import path_text

    arguments, folder = project.arguments, project.folder
    began = time.monotonic()
    survey = survey_text(sources, **arguments.reading)
    if arguments.num_steps is None:
        _check_time(arguments.minutes, time.monotonic() - began, len(sources))
    recipe, machine = _choose(project, survey)
    num_bytes, context_length = survey.num_bytes, recipe.config.model.context_length
    if num_bytes <= context_length:
        raise DataError(
            f"the text has {count_of(num_bytes, 'byte')} and one context {context_length} tokens: "
            f"give more text, {_FEW_BYTES:,} bytes or more to learn anything general"
        )
    if num_bytes < _FEW_BYTES:
        print(f"a model needs more text than {num_bytes:,} bytes to learn anything general")
    lines = [("text", _describe(survey)), ("machine", machine), *recipe.reasons]
    unit = "minute" if arguments.minutes == 1 else "minutes"
    lines.append(("time", f"{arguments.minutes:g} {unit} in all (--minutes)"))
    prompts = project.prompts or survey.prompts or ("The",)
    name = _free_name(project)
    changes: dict[str, Any] = {
        "name": name,
        "runs_folder": project.runs_folder,
        "device": arguments.device,
        "seed": arguments.seed,
    }
    values = recipe.config.model_dump(mode="json", exclude_defaults=True)
    data = {"shards": folder.shards, "tokenizer": folder.tokenizer}
    changes["data"] = {**data, **values.pop("data", {})}
    values = json.loads(json.dumps({**changes, **values}, default=str))
    # It comes from the shards: a small text may have fewer.
    vocab_size = values["model"].pop("vocab_size", None) or recipe.config.model.vocab_size
    values["samples"]["prompts"] = list(prompts[:1])
    if values["device"] == "auto":
        del values["device"]
    files = path_text(shlex.join(arguments.files)[:80])
    head = f"# What groundup new chose for {files}. To train it again:\n#\n"
    head += f"#   groundup train --config {folder.config} --name {name}-again\n\n"
    write_text_atomic(folder.config, head + as_yaml(values))
    folder.write_note(
        "plan",
        {
            "name": name,
            "named_after": project.named_after,
            "vocab_size": vocab_size,
            "prompts": prompts,
            "validation_fraction": _validation_fraction(survey.num_bytes),
        },
    )
    print_results(f"wrote {folder.config}", lines)


def _choose(project: Project, survey: "Survey") -> tuple["Recipe", str]:
    """The recipe for the speed that this machine has with it, and that speed in words."""
    from groundup.config import load_settings
    from groundup.planner import step_flops
    from groundup.planner.quantities import show_flops
    from groundup.runs.config import RunConfig
    from groundup.runtime import memory_bytes
    from groundup.training.machine import device_name, find_peak
    from groundup.training.probe import probe_this_machine
    from groundup.training.recipe import GUESSED_UTILIZATION, choose_recipe
    from groundup.training.resolve import resolve_device

    arguments = project.arguments
    device = resolve_device(load_settings(RunConfig, overrides={"device": arguments.device}))
    speed = GUESSED_UTILIZATION * (find_peak(device) or 1e11)
    seconds = max(1.0, minutes_left(project) * 60)

    def choose(speed: float) -> "Recipe":
        return choose_recipe(
            flops=speed * seconds,
            num_bytes=survey.num_bytes,
            vocab_size=arguments.vocab_size,
            document_bytes=survey.document_bytes,
            max_steps=arguments.num_steps,
            is_exportable=arguments.exportable,
            is_on_cpu=device.device == "cpu",
        )

    recipe = choose(speed)
    # A smaller model is slower at its operations: what was measured may want another.
    for _ in range(2):
        config = recipe.config.model_copy(update={"device": arguments.device})
        probe = probe_this_machine(config, memory_bytes())
        per_token = step_flops(config.model, 1) / config.model.context_length
        speed = probe.tokens_per_second * per_token
        before, recipe = recipe, choose(speed)
        if recipe.config.model == before.config.model:
            break
    return recipe, f"{device_name(device)}: {show_flops(speed)} a second in steps of this model"


def _check_time(minutes: float, survey_seconds: float, num_files: int) -> None:
    """Refuse text that takes so long to read that hardly anything is left of the time."""
    # For the vocabulary and for the shards it is read again.
    reading = 3 * survey_seconds
    if reading > _MOST_READING * 60 * minutes:
        raise ConfigError(
            f"{count_of(num_files, 'file')} took {format_duration(survey_seconds)} to read, and "
            f"have to be read twice more: too little of --minutes {minutes:g} is left to train. "
            f"Give --minutes {max(1, round(reading / 60 / _USUAL_READING)):g}"
            + (", or join many small files into a few" if num_files > _MANY_FILES else "")
        )


def _free_name(project: Project) -> str:
    """The name, or with a number the first of which there is no run: none is ever deleted."""
    from groundup.runs.folder import RunFolder

    name, number = project.name, 1
    while RunFolder(project.runs_folder / name).has_run():
        number += 1
        name = f"{project.name}-{number}"
    if number > 1:
        print(f"run {project.name} was trained with other settings and stays; this one is {name}")
    return name


def minutes_left(project: Project) -> float:
    """For the training; what comes after it takes a little, too."""
    whole = project.arguments.minutes
    passed = (time.monotonic() - project.started) / 60
    return max(0.01, whole - passed - min(_LAST_MINUTES, _LAST_FRACTION * whole))


def _validation_fraction(num_bytes: int) -> float:
    return float(f"{min(0.1, max(0.002, _VALIDATION_BYTES / num_bytes)):.2g}")


def _describe(survey: "Survey") -> str:
    from groundup.planner.quantities import show_bytes

    about = "" if survey.is_whole else "about "
    documents = count_of(survey.num_documents, "document")
    text = (
        f"{count_of(survey.num_files, 'file')}, {about}{documents}, {show_bytes(survey.num_bytes)}"
    )
    if survey.languages:
        shown = [f"{name} {fraction:.0%}" for name, fraction in survey.languages]
        text += f"; {', '.join(shown)}"
    if survey.num_repeated or survey.num_alike:
        text += f"; {survey.num_repeated:,} repeated and {survey.num_alike:,} nearly so"
        text += " (groundup data clean drops them)"
    return text
