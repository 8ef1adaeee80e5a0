"""`groundup import huggingface`: make a run folder from a checkpoint of the Llama family."""

from pathlib import Path

from pydantic import Field

from groundup.cli.arguments import Positional
from groundup.config import Settings


class Arguments(Settings):
    """Make a run folder from a Hugging Face checkpoint of the Llama family."""

    folder: Positional[Path]
    """The checkpoint's folder: config.json, safetensors weights, tokenizer.json."""

    name: str
    """Name of the new run."""

    runs_folder: Path = Path("runs")
    """Folder for run folders."""

    context_length: int | None = Field(default=None, ge=1)
    """Shorter context length than the checkpoint's, to save memory."""


def run(arguments: Arguments) -> None:
    """Import, and say what can be done with the run."""
    from groundup.interop import import_huggingface

    folder = import_huggingface(
        arguments.folder,
        arguments.name,
        runs_folder=arguments.runs_folder,
        context_length=arguments.context_length,
    )
    print(f"wrote {folder}: try groundup generate {folder} --prompt TEXT")
