"""`groundup export` and `groundup import huggingface`: models to and from other tools."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from pydantic import Field

from groundup.cli.arguments import Positional
from groundup.cli.shared import RUNS_FOLDER, RunFlags, find_run
from groundup.config import Settings
from groundup.errors import ConfigError


class Export(RunFlags):
    """Export a trained model for another tool."""

    out: Positional[Path]
    """Output folder; for gguf, a file that ends in .gguf."""

    to: Literal["huggingface", "gguf", "ollama"]
    """Target: a folder for transformers, a file for llama.cpp, or a folder for ollama create."""

    dtype: Literal["float32", "bfloat16", "float16", "q8_0", "q4_0"] = "float32"
    """Precision of the weights; q8_0 and q4_0 (8 and 4 bits) are for gguf and ollama only."""

    force: bool = False
    """Replace an earlier export."""


def export(arguments: Export) -> None:
    from groundup.interop import export_gguf, export_huggingface, export_ollama

    if arguments.to == "huggingface" and arguments.dtype in ("q8_0", "q4_0"):
        raise ConfigError(f"--dtype {arguments.dtype} is for --to gguf and --to ollama")
    exports = {"huggingface": export_huggingface, "gguf": export_gguf, "ollama": export_ollama}
    write: Callable[..., list[str]] = exports[arguments.to]
    names = write(
        find_run(arguments.run),
        arguments.out,
        checkpoint=arguments.checkpoint,
        dtype=arguments.dtype,
        force=arguments.force,
    )
    print(f"wrote {arguments.out}: {', '.join(names)}")
    if "modeling_groundup.py" in names:
        print("transformers needs the code in it: load it with trust_remote_code=True")


class Huggingface(Settings):
    """Make a run folder from a Hugging Face checkpoint of the Llama family."""

    folder: Positional[Path]
    """The checkpoint's folder: config.json, safetensors weights, tokenizer.json."""

    name: str
    """Name of the new run."""

    runs_folder: Path = RUNS_FOLDER
    """Folder for run folders."""

    context_length: int | None = Field(default=None, ge=1)
    """Shorter context length than the checkpoint's, to save memory."""


def huggingface(arguments: Huggingface) -> None:
    from groundup.interop import import_huggingface

    folder = import_huggingface(**arguments.model_dump())
    print(f"imported as {folder}: try groundup generate {folder} --prompt TEXT")
