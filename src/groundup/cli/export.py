"""`groundup export`: a trained model for other tools, as a folder or file they load."""

from collections.abc import Callable
from pathlib import Path
from typing import Literal

from groundup.cli.arguments import Positional
from groundup.cli.shared import RunFlags
from groundup.errors import ConfigError


class Arguments(RunFlags):
    """Export a trained model for another tool."""

    out: Positional[Path]
    """Output folder; for gguf, a file that ends in .gguf."""

    to: Literal["huggingface", "gguf", "ollama"]
    """Target: a folder for transformers, a file for llama.cpp, or a folder for ollama create."""

    dtype: Literal["float32", "bfloat16", "float16", "q8_0", "q4_0"] = "float32"
    """Precision of the weights; q8_0 and q4_0 (8 and 4 bits) are for gguf and ollama only."""

    force: bool = False
    """Replace an earlier export."""


def run(arguments: Arguments) -> None:
    """Export, and say what was written."""
    from groundup.cli.shared import find_run
    from groundup.interop import export_gguf, export_huggingface, export_ollama

    if arguments.to == "huggingface" and arguments.dtype in ("q8_0", "q4_0"):
        raise ConfigError(f"--dtype {arguments.dtype} is for --to gguf and --to ollama")
    exports = {"huggingface": export_huggingface, "gguf": export_gguf, "ollama": export_ollama}
    export: Callable[..., list[str]] = exports[arguments.to]
    names = export(
        find_run(arguments.run),
        arguments.out,
        checkpoint=arguments.checkpoint,
        dtype=arguments.dtype,
        force=arguments.force,
    )
    print(f"wrote {arguments.out}: {', '.join(names)}")
    if "modeling_groundup.py" in names:
        print("transformers runs this model by the code in it: load it with trust_remote_code=True")
