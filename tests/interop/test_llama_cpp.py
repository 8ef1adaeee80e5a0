"""Exports in llama.cpp itself, if its Python binding is installed."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from groundup.generation import LanguageModel
from groundup.generation.special_ids import chat_prompt
from groundup.interop import export_gguf
from groundup.tokenizer import Tokenizer

from .conftest import END, TEXT, MakeRun

ODD = [
    "don't  DO\n\n \tit1234 12",
    "naïve e\u0301 中文カナ한국 🙂\u200d",
    f"a{END} {END}b",
    "\r\n\x00<|end",
]
MODELS = {"gpt2": {"tie_embeddings": True}, "llama3": {}, "qwen2": {"qk_norm": True}}
MOST = {"float32": 1e-9, "float16": 1e-5, "bfloat16": 1e-3, "q8_0": 0.01, "q4_0": 0.2}
"""By precision, how much less than 1 the correlation of the logits is: the weights are noise."""


@pytest.mark.slow
@pytest.mark.parametrize("pattern", MODELS)
def test_llama_cpp_computes_the_same(make_run: MakeRun, tmp_path: Path, pattern: str) -> None:
    llama = pytest.importorskip("llama_cpp")
    (tmp_path / "text.txt").write_text(TEXT + "".join(ODD).replace(END, "") * 30, "utf-8")
    tokenizer = Tokenizer.train(tmp_path / "text.txt", 300, pattern=pattern).with_chat()
    run = make_run(tokenizer=tokenizer, vocab_size=302, num_kv_heads=2, **MODELS[pattern])
    ids, file = [int(id) for id in tokenizer.encode(TEXT)][:30], tmp_path / "one.gguf"
    ours = LanguageModel.load(run).model(torch.tensor([ids])).detach().numpy().ravel()
    settings: dict[str, Any] = {"logits_all": True, "verbose": False, "type_k": 0, "type_v": 0}
    for dtype, most in MOST.items():
        export_gguf(run, file, dtype=dtype, force=True)  # type: ignore[arg-type]
        theirs = llama.Llama(str(file), n_ctx=256, **settings)
        theirs.eval(ids)
        assert np.corrcoef(theirs.scores[: len(ids)].ravel(), ours)[0, 1] > 1 - most, dtype
    for text in ODD:
        assert theirs.tokenize(text.encode(), False, True) == list(tokenizer.encode(text))
    messages = [{"role": "user", "content": "Who?"}, {"role": "system", "content": " a\n"}]
    num_tokens = theirs.create_chat_completion(messages, max_tokens=1)["usage"]["prompt_tokens"]
    assert num_tokens == len(tokenizer.encode(chat_prompt(tokenizer, messages)))
