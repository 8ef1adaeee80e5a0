"""Exports a run as a folder for `ollama create`: a GGUF file and a Modelfile.

Ollama uses Go templates. The Modelfile contains ChatML in that form; Ollama recognizes other common
templates in the GGUF file by itself.
"""

import os
import shlex

from groundup.files import write_text_atomic
from groundup.generation.loading import CheckpointName
from groundup.interop.export_folder import Source, export_folder
from groundup.interop.gguf import GgufDtype, write_gguf
from groundup.interop.model_card import write_card
from groundup.tokenizer.chat_template import CHATML

MODEL_NAME = "model.gguf"
_USAGE = "```sh\nollama create {name} -f Modelfile\nollama run {name}\n```"
_GO_CHATML = (
    "{{ range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n{{ end }}"
    "<|im_start|>assistant\n"
)


def export_ollama(
    run_folder: str | os.PathLike[str],
    folder: str | os.PathLike[str],
    *,
    checkpoint: CheckpointName = "newest",
    dtype: GgufDtype = "float32",
    force: bool = False,
) -> list[str]:
    """Write model, Modelfile and model card; return their names. `force` replaces an export."""
    source = Source(run_folder, checkpoint)
    with export_folder(folder, force=force) as temporary:
        write_gguf(temporary / MODEL_NAME, source, dtype)
        write_text_atomic(temporary / "Modelfile", write_modelfile(source))
        usage = _USAGE.format(name=shlex.quote(source.name.lower()))
        write_card(temporary, source, tag="gguf", dtype=dtype, weights=MODEL_NAME, usage=usage)
        return sorted(file.name for file in temporary.iterdir())


def write_modelfile(source: Source) -> str:
    """The Modelfile with the run's template, stop tokens and sampling parameters; explicit even at
    our defaults, because Ollama's differ."""
    template, sampler = source.tokenizer.chat_template, source.sampler
    templates = {None: "{{ .Prompt }}", CHATML: _GO_CHATML}
    texts = {id: text for text, id in source.tokenizer.special_tokens.items()}
    values = {
        "num_ctx": source.config.context_length,
        "num_predict": source.config.context_length,
        "temperature": sampler.temperature,
        "top_k": sampler.top_k or 0,
        "top_p": sampler.top_p,
        "min_p": sampler.min_p,
        "repeat_penalty": sampler.repetition_penalty,
        "repeat_last_n": -1,  # The whole text.
    }
    lines = [f"FROM ./{MODEL_NAME}"]
    lines += [f'TEMPLATE """{templates[template]}"""'] if template in templates else []
    stops = [texts[id] for id in source.special_ids.ends if id in texts]
    # A special token of an imported tokenizer could end the line and give instructions.
    lines += [f'PARAMETER stop "{one}"' for one in stops if one.isprintable() and '"' not in one]
    lines += [f"PARAMETER {name} {value}" for name, value in values.items()]
    return "\n".join(lines) + "\n"
