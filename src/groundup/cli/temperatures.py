"""`groundup temperatures`: what temperature and top-p do to the texts of trained models."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import Positional, UseAppendAction

from groundup.cli.report import check_outputs, print_written, read_finding, write_document
from groundup.errors import CheckpointError, ConfigError

if TYPE_CHECKING:
    from groundup.experiments.reference_text import ReferenceText
    from groundup.experiments.temperatures import RunStudy, TemperatureStudy
    from groundup.generation import LanguageModel

DEFAULT_PROMPT = "Once upon a time"


_HOW_TO_GENERATE = (
    "temperatures",
    "top_p",
    "prompt",
    "num_samples",
    "max_tokens",
    "seed",
    "reference",
    "checkpoint",
    "device",
)


@dataclass(frozen=True)
class Arguments:
    """Generate many texts at each of several temperatures and measure them.

    Every setting has the same seeds. Measured are the model's own bits per token, how varied the
    words are, how much repeats, how long texts are and whether they come to an end.
    """

    runs: Positional[tuple[str, ...]]
    """Runs: their folders, or their names under runs. Or one JSON file that --out wrote, to make
    its page anew, with another finding for example, without generating."""

    temperatures: tuple[float, ...] = (0.0, 0.3, 0.6, 0.8, 1.0, 1.3)
    """Temperatures to generate at; 0 always takes the likeliest token, one text per prompt."""

    top_p: tuple[float, ...] = (1.0, 0.9)
    """Values of top-p for each temperature."""

    prompt: UseAppendAction[tuple[str, ...]] = ()
    """A text to go on from; repeat for more. Without one: Once upon a time."""

    num_samples: int = 32
    """Texts for each prompt and setting."""

    max_tokens: int = 200
    """The most tokens of a text; the end of the document comes first as a rule."""

    seed: int = 0
    """The first text of a prompt is sampled with this seed, the next with the one after it."""

    reference: Path | None = None
    """Text that people wrote: its words are the known ones. Its first documents are measured
    beside the texts where those of the run's own validation split cannot be."""

    checkpoint: str = "newest"
    """The checkpoint to generate with: newest, best, or a step."""

    device: str = "auto"
    """auto, cpu, cuda, cuda:N or mps; auto takes the fastest there is."""

    out: Path | None = None
    """Write everything, with every text, to this JSON file."""

    markdown: Path | None = None
    """A folder to write Markdown and its pictures into, as for docs/experiments (extra report)."""

    title: str = "Generation at several temperatures"
    """What the Markdown page is called."""

    why: str = ""
    """What was to be found out, in a sentence or two."""

    finding: str | None = None
    """What you make of it, in your own words, or @FILE that holds them."""


def run(arguments: Arguments) -> None:
    """Check, generate, measure, print."""
    from groundup.experiments.report.temperature_page import temperature_document
    from groundup.files import write_json_atomic

    check_outputs([arguments.out] if arguments.out else [], (".json",), arguments.markdown)
    finding = read_finding(arguments.finding) or ""
    study = read_written(arguments) or make_study(arguments)
    print_study(study)
    if arguments.out is not None:
        write_json_atomic(arguments.out, study.as_json())
        print_written([arguments.out])
    if arguments.markdown is not None:
        title, why = arguments.title, arguments.why
        document = temperature_document(study, title, why=why, finding=finding)
        print_written(write_document(document, None, arguments.markdown))


def read_written(arguments: Arguments) -> "TemperatureStudy | None":
    """The study in the file that is named instead of runs; None where runs are named."""
    runs = arguments.runs
    files = [name for name in runs if name.endswith(".json") and Path(name).is_file()]
    if not files:
        return None
    if len(runs) > 1:
        raise ConfigError(
            f"{files[0]} is a study that has been made, and stands alone: name it, or runs"
        )
    usual = Arguments(runs)
    for name in _HOW_TO_GENERATE:
        if getattr(arguments, name) != getattr(usual, name):
            raise ConfigError(
                f"{files[0]} is a study that has been made, and --{name.replace('_', '-')} would "
                f"change nothing in it: leave it out, or name the runs to generate with"
            )
    from groundup.experiments.temperatures import TemperatureStudy

    return TemperatureStudy.read(Path(files[0]))


def make_study(arguments: Arguments) -> "TemperatureStudy":
    """All runs, one after another; mistakes are told before the first text."""
    from groundup.cli.generate import load_to_write
    from groundup.cli.progress import progress_bar
    from groundup.experiments.temperatures import (
        Conditions,
        TemperatureStudy,
        settings_of,
        study_run,
    )

    settings = settings_of(arguments.temperatures, arguments.top_p)
    conditions = Conditions(
        prompts=tuple(map(_readable, arguments.prompt)) or (DEFAULT_PROMPT,),
        num_texts=arguments.num_samples,
        max_tokens=arguments.max_tokens,
        seed=arguments.seed,
    )
    folders = find_folders(arguments.runs)
    common = _read_reference(arguments)
    studied: list[RunStudy] = []
    for name, folder in folders.items():
        language_model = load_to_write(folder, arguments.checkpoint, arguments.device, "auto")
        reference = _reference_of(folder, language_model, common, arguments)
        with progress_bar(f"generating with {name}", "texts") as report:
            studied.append(
                study_run(
                    name,
                    language_model,
                    settings,
                    conditions,
                    reference=reference,
                    progress=report,
                )
            )
    reference_name = None if arguments.reference is None else arguments.reference.name
    device = describe_device(arguments.device)
    return TemperatureStudy(conditions, settings, device, reference_name, studied)


def find_folders(runs: tuple[str, ...]) -> dict[str, Path]:
    """The folders of runs by short names; each run once, and each with a checkpoint."""
    from groundup.checkpoint import CheckpointFolder
    from groundup.cli.runs import find_run
    from groundup.runs.folder import RunFolder

    if not runs:
        raise ConfigError("groundup temperatures needs at least one run: name its folder")
    folders = list({folder.resolve(): folder for folder in map(find_run, runs)}.values())
    for folder in folders:
        if not CheckpointFolder(RunFolder(folder).checkpoints).steps():
            raise CheckpointError(f"{folder} has no checkpoint yet: train until one is written")
    names = [folder.resolve().name for folder in folders]
    if len(set(names)) < len(names):
        names = [str(folder) for folder in folders]
    return dict(zip(names, folders, strict=True))


def describe_device(device: str) -> str:
    """The device that the flag stands for, as its maker calls it."""
    from groundup.config import load_settings
    from groundup.runs.config import RunConfig
    from groundup.training.execution import device_name, resolve_device

    return device_name(resolve_device(load_settings(RunConfig, overrides={"device": device})))


def print_study(study: "TemperatureStudy") -> None:
    """Two tables for each run: how sure and how long; how varied."""
    from groundup.cli.tables import print_table
    from groundup.experiments.report.temperature_page import (
        metrics_in,
        row_of,
        show_finished,
        warnings_of,
    )
    from groundup.experiments.report.text import UNKNOWN, visible

    metrics = metrics_in(study)
    first = [metric for metric in metrics if not metric.name.endswith("grams")]
    second = [metric for metric in metrics if metric.name.endswith("grams")]
    for run in study.runs:
        name = " ".join(visible(run.name).split())
        rows = [
            [result.setting.label, *row_of(result.figures, first), show_finished(result)]
            for result in run.results
        ]
        varied = [[result.setting.label, *row_of(result.figures, second)] for result in run.results]
        if run.reference is not None:
            rows.append(["reference text", *row_of(run.reference, first), UNKNOWN])
            varied.append(["reference text", *row_of(run.reference, second)])
        headers = ["temperature", *(metric.short_title for metric in first), "ended"]
        print_table(f"{name}: how sure, how long", headers, rows)
        headers = ["temperature", *(metric.short_title for metric in second)]
        print_table(f"{name}: how varied, in n-grams of words", headers, varied)
    for warning in warnings_of(study):
        print(" ".join(visible(warning).split()))


def _read_reference(arguments: Arguments) -> "ReferenceText | None":
    if arguments.reference is None:
        return None
    from groundup.experiments.reference_text import read_reference

    return read_reference(arguments.reference, _num_documents(arguments))


def _reference_of(
    folder: Path,
    language_model: "LanguageModel",
    common: "ReferenceText | None",
    arguments: Arguments,
) -> "ReferenceText | None":
    """What one run is held against: text that it has not learned from, where there is such."""
    from groundup.experiments.reference_text import ReferenceText, unseen_documents
    from groundup.runs.folder import RunFolder

    tokenizer, most = language_model.tokenizer, _num_documents(arguments)
    unseen = unseen_documents(RunFolder(folder), tokenizer, most)
    if not unseen:
        return common
    return ReferenceText(None if common is None else common.words, unseen, is_unseen=True)


def _num_documents(arguments: Arguments) -> int:
    return max(2, arguments.num_samples)


def _readable(prompt: str) -> str:
    """Words of the command line that are no UTF-8 arrive as surrogates, which no text has."""
    return prompt.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
