"""Folders for Ollama: the Modelfile has the run's template and parameters."""

import re
from pathlib import Path

import pytest

from groundup.errors import ConfigError
from groundup.files import write_json_atomic
from groundup.interop import export_ollama
from groundup.tokenizer import Tokenizer
from groundup.tokenizer.chat_template import ChatTemplate, Message
from groundup.tokenizer.reference import train_bpe_reference

from .conftest import TEXT, MakeRun

gguf = pytest.importorskip("gguf")


def test_the_modelfile_has_template_stops_and_parameters(
    make_run: MakeRun, tmp_path: Path, tokenizer: Tokenizer
) -> None:
    run, out = make_run(tokenizer=tokenizer.with_chat(), vocab_size=302), tmp_path / "out"
    write_json_atomic(run / "generation.json", {"temperature": 0.5, "top_k": 7})
    assert export_ollama(run, out, dtype="q8_0") == ["Modelfile", "README.md", "model.gguf"]
    lines = (out / "Modelfile").read_text().splitlines()
    assert lines[0] == "FROM ./model.gguf"
    # The Go template renders like the Jinja template.
    text = (out / "Modelfile").read_text()
    found = re.search(r'"""{{ range .Messages }}(.*){{ end }}(.*)"""', text, re.DOTALL)
    assert found
    messages: list[Message] = [
        {"role": "user", "content": "Who?"},
        {"role": "assistant", "content": " Me.\n"},
    ]
    turn = found[1].replace("{{ .Role }}", "{role}").replace("{{ .Content }}", "{content}")
    said = (turn.format(**message) for message in messages)
    template = ChatTemplate(tokenizer.with_chat().chat_template or "")
    assert "".join(said) + found[2] == template.render(messages, add_generation_prompt=True)
    values = dict(re.findall(r"^PARAMETER (\w+) (.*)$", "\n".join(lines), re.MULTILINE))
    assert values["stop"] == '"<|im_end|>"' and values["num_ctx"] == "32"
    assert (values["temperature"], values["top_k"], values["repeat_penalty"]) == ("0.5", "7", "1.0")
    assert values["repeat_last_n"] == "-1"
    assert "ollama create tiny -f Modelfile" in (out / "README.md").read_text()
    assert gguf.GGUFReader(out / "model.gguf").fields["general.file_type"].contents() == 7
    with pytest.raises(ConfigError, match="--force"):
        export_ollama(run, out)
    export_ollama(make_run("plain"), out, force=True)
    assert 'TEMPLATE """{{ .Prompt }}"""' in (out / "Modelfile").read_text()
    other = tokenizer.with_chat("{% for m in messages %}{{ m.content }}<|im_end|>{% endfor %}")
    export_ollama(make_run("other", tokenizer=other, vocab_size=302), out, force=True)
    assert "TEMPLATE" not in (out / "Modelfile").read_text()
    # A token that ends turns gives no instructions.
    odd = 'x"\nADAPTER /etc/passwd'
    other = Tokenizer(*train_bpe_reference(TEXT, 300, [odd]), [odd])
    other = other.with_chat("{% for m in messages %}{{ m.content }}" + odd + "{% endfor %}")
    export_ollama(make_run("odd", tokenizer=other, vocab_size=302), out, force=True)
    assert "ADAPTER" not in (out / "Modelfile").read_text()
