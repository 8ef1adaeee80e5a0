"""`groundup data clean`: documents worth learning from, without duplicates."""

import shlex
from pathlib import Path

from groundup.cli.shared import CorpusFlags
from groundup.cli.terminal import print_results, print_table
from groundup.data.clean import CleanSettings


class Arguments(CorpusFlags, CleanSettings):
    """Leave out duplicates, near duplicates and poor documents; write the others as JSON lines."""

    out: Path = Path("clean.jsonl")
    """The .jsonl file to write."""

    validation: tuple[str, ...] = ()
    """Validation text, named as FILES: the last lines say how much of it stands in what is kept."""

    dry_run: bool = False
    """Count only, and write nothing."""

    overwrite: bool = False
    """Replace files that are already there."""


def run(arguments: Arguments) -> None:
    """Clean and print what came of it."""
    from groundup.data.clean import clean
    from groundup.planner.quantities import show_bytes

    out = None if arguments.dry_run else arguments.out
    settings = {name: getattr(arguments, name) for name in CleanSettings.model_fields}
    with arguments.work("cleaning") as work:
        summary = clean(
            arguments.files,
            out,
            CleanSettings(**settings),
            validation=arguments.validation,
            overwrite=arguments.overwrite,
            **work,
        )
    whole = max(summary.counts["read"].num_bytes, 1)
    rows = [
        (name, f"{one.num_documents:,}", show_bytes(one.num_bytes), f"{one.num_bytes / whole:.1%}")
        for name, one in summary.counts.items()
    ]
    title = "counted, nothing written" if out is None else f"wrote {shlex.quote(str(out))}"
    print_table(title, ("", "documents", "text", "of the text"), rows)
    notes = [
        (name, f"for example {one.example!r}")
        for name, one in summary.counts.items()
        if one.example and name not in ("read", "kept")
    ]
    if summary.num_passages:
        fraction = summary.num_leaked / summary.num_passages
        notes.append(("validation", f"{fraction:.1%} of its runs of 13 words are in what is kept"))
    notes.append(("speed", f"{whole / summary.seconds / 1e6:,.1f} MB/s"))
    print_results("", notes)
