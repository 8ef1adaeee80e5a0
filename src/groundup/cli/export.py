"""`groundup export`: a trained model for other tools, as a folder or file they load."""

from pathlib import Path
from typing import Literal

from groundup.cli.arguments import Positional
from groundup.cli.shared import RunFlags


class Arguments(RunFlags):
    """Write a trained model in the form of another tool."""

    out: Positional[Path]
    """The folder to write; for gguf the file, which ends in .gguf."""

    to: Literal["huggingface", "gguf"]
    """A folder for transformers, or a file for llama.cpp."""

    dtype: Literal["float32", "bfloat16", "float16"] = "float32"
    """The precision of the weights."""

    force: bool = False
    """Replace an earlier export."""


def run(arguments: Arguments) -> None:
    """Export, and say what was written."""
    from groundup.cli.shared import find_run
    from groundup.interop import export_gguf, export_huggingface

    export = export_huggingface if arguments.to == "huggingface" else export_gguf
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
