"""A run exported to Hugging Face is the same model in the real transformers."""

import json
import os
from pathlib import Path
from typing import Any

import pytest
import torch

from groundup.checkpoint import CheckpointFolder
from groundup.errors import ConfigError
from groundup.generation import LanguageModel
from groundup.interop import export_huggingface, huggingface_export, import_huggingface

from .conftest import MakeRun

transformers = pytest.importorskip("transformers")

TEXT = "Ada had a red kite. Ben lost the old drum. Who found the new boat? It's Eve's! " * 2
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "tied embeddings, scaled": {"tie_embeddings": True},
    "padded vocabulary": {"vocab_size": 320},
    "qwen3, grouped and tied": {"qk_norm": True, "num_kv_heads": 1, "tie_embeddings": True},
}
PROMPT = "Ada had a red"


def load(folder: Path) -> Any:
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, local_files_only=True)
    return model.eval()


def largest_difference(theirs: Any, ours: LanguageModel) -> float:
    ids = torch.tensor([ours.tokenizer.encode(TEXT)[:32], list(range(200, 232))])
    with torch.no_grad():
        return float((theirs(ids).logits - ours.model(ids)).abs().max())


def save(run: Path, model: torch.nn.Module, step: int) -> None:
    CheckpointFolder(run / "checkpoints").save(step, model.state_dict(), {}, {})


@pytest.mark.slow
@pytest.mark.parametrize("settings", SHAPES.values(), ids=SHAPES)
def test_logits_and_greedy_text_agree(
    make_run: MakeRun, tmp_path: Path, settings: dict[str, Any]
) -> None:
    run, out = make_run(**settings), tmp_path / "out"
    export_huggingface(run, out)
    theirs, ours = load(out), LanguageModel.load(run, device="cpu")
    assert theirs.dtype == torch.float32
    architecture = "Qwen3ForCausalLM" if settings.get("qk_norm") else "LlamaForCausalLM"
    assert type(theirs).__name__ == architecture
    assert largest_difference(theirs, ours) < 1e-4
    tokenizer = transformers.AutoTokenizer.from_pretrained(out, local_files_only=True)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    ids = theirs.generate(**inputs, max_new_tokens=20, do_sample=False)[0].tolist()
    text = tokenizer.decode(ids[inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    # A character whose last bytes did not come is shown there as one that is broken.
    expected = ours.generate(PROMPT, max_tokens=20, temperature=0)
    assert text.rstrip("\ufffd") == expected.rstrip("\ufffd")
    # Taken back and exported once more, it is the same to the last byte.
    export_huggingface(import_huggingface(out, "back", runs_folder=tmp_path), tmp_path / "again")
    for name in ("model.safetensors", "tokenizer.json", "config.json", "generation_config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (out / name).read_bytes(), name


def test_the_chosen_checkpoint_is_exported(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    later = LanguageModel.load(run, device="cpu").model
    with torch.no_grad():
        later.lm_head.weight.mul_(2)
    save(run, later, step=9)
    export_huggingface(run, tmp_path / "old", checkpoint=7)
    export_huggingface(run, tmp_path / "new")
    old, new = (load(tmp_path / name).lm_head.weight for name in ("old", "new"))
    assert torch.equal(2 * old, new)


def test_weights_that_do_not_fit_the_dtype_are_named(make_run: MakeRun, tmp_path: Path) -> None:
    run = make_run()
    model = LanguageModel.load(run, device="cpu").model
    with torch.no_grad():
        model.lm_head.weight[0, 0] = 1e6
    save(run, model, step=8)
    with pytest.raises(ConfigError, match=r"lm_head.* 1e\+06.*float16"):
        export_huggingface(run, tmp_path / "out", dtype="float16")
    export_huggingface(run, tmp_path / "out", dtype="bfloat16")
    with torch.no_grad():
        model.lm_head.weight[0, 0] = torch.nan
    save(run, model, step=9)
    with pytest.raises(ConfigError, match=r"lm_head.* nan"):
        export_huggingface(run, tmp_path / "other")


def test_force_replaces_an_export_and_nothing_else(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = make_run(), tmp_path / "out"
    export_huggingface(run, out)
    with pytest.raises(ConfigError, match=r"not empty.*--force"):
        export_huggingface(run, out)
    (out / "model-00001-of-00002.safetensors").touch()
    export_huggingface(run, out, force=True)
    assert not (out / "model-00001-of-00002.safetensors").exists()
    for name, key in (("a.tex", "holds a"), ("README.md", "no export"), ("x.safetensors", "holds")):
        folder = tmp_path / f"{name} here"
        folder.mkdir()
        (folder / name).write_text("mine")
        with pytest.raises(ConfigError, match=key):
            export_huggingface(run, folder, force=True)
        with pytest.raises(ConfigError, match="is a file"):
            export_huggingface(run, folder / name, force=True)
        assert (folder / name).read_text() == "mine"
    with pytest.raises(ConfigError, match="not part of an export"):
        export_huggingface(run, run, force=True)
    monkeypatch.chdir(out)
    with pytest.raises(ConfigError, match="the folder you are in"):
        export_huggingface(run, ".", force=True)


def test_a_stopped_export_leaves_what_was_there(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tests/torture kills one for good."""

    def stop(*arguments: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    run, new, old = make_run(), tmp_path / "new" / "out", tmp_path / "old" / "out"
    names = export_huggingface(run, old)
    monkeypatch.setattr(huggingface_export, "write_card", stop)
    for out in (new, old):
        with pytest.raises(KeyboardInterrupt):
            export_huggingface(run, out, force=True)
    assert os.listdir(new.parent) == [] and os.listdir(old.parent) == ["out"]
    assert sorted(os.listdir(old)) == names


@pytest.mark.parametrize(("vocab_size", "lacking"), [(300, None), (303, [300, 301, 302])])
def test_special_ids_are_told_and_those_that_the_tokenizer_lacks(
    make_run: MakeRun, tmp_path: Path, vocab_size: int, lacking: list[int] | None
) -> None:
    export_huggingface(make_run(vocab_size=vocab_size), tmp_path / "out")
    for name in ("config.json", "generation_config.json"):
        told = json.loads((tmp_path / "out" / name).read_text("utf-8"))
        assert told["bos_token_id"] == told["eos_token_id"] == told["pad_token_id"] == 299
    assert told.get("suppress_tokens") == lacking
