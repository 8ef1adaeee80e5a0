"""Folders for Ollama: the Modelfile says how the run is used, in Ollama's own language."""

import re
from pathlib import Path

import pytest

from groundup.errors import ConfigError
from groundup.files import write_json_atomic
from groundup.interop import export_ollama
from groundup.interop.ollama import to_go_template
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.chat_template import CHATML, ChatTemplate, Message

from .conftest import MakeRun

gguf = pytest.importorskip("gguf")

ALTERNATING = (
    "{% for m in messages %}{% if m.role == 'system' %}{{ raise_exception('no system') }}"
    "{% elif m.role == 'user' %}[INST] {{ m.content }} [/INST]{% else %} {{ m.content }}</s>"
    "{% endif %}{% endfor %}"
)
NUMBERED = "{% for m in messages %}{{ loop.index }} {{ m.role }}: {{ m.content }}\n{% endfor %}"


def render_go(template: str, messages: list[Message]) -> str:
    """What Go's text/template makes of `range`, `eq .Role` and `.Content`."""
    found = re.fullmatch(r"\{\{ range .Messages \}\}(.*)\{\{ end \}\}(.*)", template, re.DOTALL)
    assert found
    body, prompt = found.groups()
    cases = dict(re.findall(r'\{\{ if eq .Role "(\w+)" \}\}(.*?)\{\{ end \}\}', body, re.DOTALL))
    parts = [cases[one["role"]].replace("{{ .Content }}", one["content"]) for one in messages]
    return "".join(parts) + str(prompt)


@pytest.mark.parametrize("source", [CHATML, ALTERNATING], ids=["chatml", "alternating"])
def test_go_renders_what_jinja_does(source: str) -> None:
    template = ChatTemplate(source)
    messages: list[Message] = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": " It's me.\n"},
        {"role": "user", "content": ""},
    ]
    if source == CHATML:
        messages.insert(0, {"role": "system", "content": "Be kind."})
    expected = template.render(messages, add_generation_prompt=True)
    assert render_go(to_go_template(template), messages) == expected


def test_a_template_whose_turns_depend_on_each_other_is_refused() -> None:
    with pytest.raises(ConfigError, match="--to gguf"):
        to_go_template(ChatTemplate(NUMBERED))


def test_the_modelfile_says_how_the_run_is_used(
    make_run: MakeRun, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    run, out = make_run(tokenizer=tokenizer.with_chat(), vocab_size=302), tmp_path / "out"
    write_json_atomic(run / "generation.json", {"temperature": 0.5, "top_k": 7})
    assert export_ollama(run, out, dtype="q8_0") == ["Modelfile", "README.md", "model.gguf"]
    lines = (out / "Modelfile").read_text().splitlines()
    assert lines[0] == "FROM ./model.gguf" and any("<|im_start|>user" in line for line in lines)
    told = dict(re.findall(r"^PARAMETER (\w+) (.*)$", "\n".join(lines), re.MULTILINE))
    assert told["stop"] == '"<|im_end|>"' and told["num_ctx"] == "32"
    assert (told["temperature"], told["top_k"], told["repeat_penalty"]) == ("0.5", "7", "1.0")
    assert "ollama create tiny -f Modelfile" in (out / "README.md").read_text()
    assert gguf.GGUFReader(out / "model.gguf").fields["general.file_type"].contents() == 7
    with pytest.raises(ConfigError, match="--force"):
        export_ollama(run, out)
    export_ollama(make_run("plain"), out, force=True)
    assert 'TEMPLATE """{{ .Prompt }}"""' in (out / "Modelfile").read_text()
