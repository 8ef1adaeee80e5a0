"""`groundup temperatures`: what temperature and top-p do to the texts of trained models."""

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from tyro.conf import Positional, UseAppendAction

from groundup.cli.report import (
    check_outputs,
    print_document,
    print_written,
    read_finding,
    write_document,
)
from groundup.errors import CheckpointError, ConfigError, DataError

DEFAULT_PROMPT = "Once upon a time"

# What may be said about a study that has been made; all else decides what is generated.
_OF_THE_PAGE = ("runs", "out", "markdown", "title", "why", "finding")


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
    file = _study_file(arguments)
    try:
        study = make_study(arguments) if file is None else json.loads(file.read_bytes())
        document = temperature_document(study, arguments.title, why=arguments.why, finding=finding)
    except (LookupError, TypeError, AttributeError, ValueError) as error:
        if file is None:
            raise
        raise DataError(
            f"{file} is no study of temperatures ({error}): give a file that groundup "
            f"temperatures --out wrote, or runs"
        ) from error
    print_document(document)
    if arguments.out is not None:
        write_json_atomic(arguments.out, study)
        print_written([arguments.out])
    print_written(write_document(document, None, arguments.markdown))


def _study_file(arguments: Arguments) -> Path | None:
    """The study that is named instead of runs; None where runs are named."""
    files = [name for name in arguments.runs if name.endswith(".json") and Path(name).is_file()]
    if not files:
        return None
    if len(arguments.runs) > 1:
        raise ConfigError(
            f"{files[0]} is a study that has been made, and stands alone: name it, or runs"
        )
    usual = Arguments(arguments.runs)
    for name, value in vars(arguments).items():
        if name not in _OF_THE_PAGE and value != getattr(usual, name):
            raise ConfigError(
                f"{files[0]} is a study that has been made, and --{name.replace('_', '-')} would "
                f"change nothing in it: leave it out, or name the runs to generate with"
            )
    return Path(files[0])


def make_study(arguments: Arguments) -> dict[str, Any]:
    """All runs, one after another; mistakes are told before the first text."""
    from groundup.cli.progress import progress_bar
    from groundup.cli.shared_flags import load_model
    from groundup.experiments.reference_text import Reference, read_reference, unseen_documents
    from groundup.experiments.temperatures import Conditions, settings_of, study_run
    from groundup.runs.folder import RunFolder

    settings = settings_of(arguments.temperatures, arguments.top_p)
    # Words of the command line that are not UTF-8 arrive as surrogates, which no text has.
    words = [prompt.encode("utf-8", "surrogateescape") for prompt in arguments.prompt]
    conditions = Conditions(
        prompts=tuple(word.decode("utf-8", "replace") for word in words) or (DEFAULT_PROMPT,),
        num_texts=arguments.num_samples,
        max_tokens=arguments.max_tokens,
        seed=arguments.seed,
    )
    folders = find_folders(arguments.runs)
    num_documents = max(2, arguments.num_samples)
    path = arguments.reference
    common = None if path is None else read_reference(path, num_documents)
    studied = []
    for name, folder in folders.items():
        model = load_model(folder, arguments.checkpoint, arguments.device, "auto")
        reference = common
        # Text that the run has not learned from, where there is such.
        if unseen := unseen_documents(RunFolder(folder), model.tokenizer, num_documents):
            reference = Reference(common and common.words, unseen, is_unseen=True)
        with progress_bar(f"generating with {name}", "texts") as report:
            studied.append(
                study_run(name, model, settings, conditions, reference=reference, progress=report)
            )
    return {
        "conditions": asdict(conditions),
        "settings": [setting._asdict() for setting in settings],
        "device": describe_device(arguments.device),
        "reference": None if path is None else path.name,
        "runs": studied,
    }


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
