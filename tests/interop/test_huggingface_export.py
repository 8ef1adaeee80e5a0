"""A run exported to Hugging Face is the same model in transformers."""

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from groundup.checkpoint import CheckpointFolder
from groundup.errors import ConfigError, GroundupError
from groundup.generation import LanguageModel
from groundup.interop import export_huggingface, import_huggingface

from .conftest import TEXT, MakeRun, load

transformers = pytest.importorskip("transformers")

# tests/interop/test_every_setting.py tests each setting separately.
SHAPES: dict[str, dict[str, Any]] = {
    "llama": {},
    "padded vocabulary": {"vocab_size": 320},
    "qwen3, grouped and tied": {"qk_norm": True, "num_kv_heads": 1, "tie_embeddings": True},
    "ours": {"gated_attention": True, "value_embeddings": "projection", "feed_forward": "relu2"}
    | {"qk_norm": True, "num_kv_heads": 2, "tie_embeddings": True, "document_separator": 299},
}
PROMPT = "Ada had a red"


def largest_difference(theirs: Any, ours: LanguageModel) -> float:
    ids = torch.tensor([ours.tokenizer.encode(TEXT)[:32], list(range(200, 232))])
    with torch.no_grad():
        expected = ours.model(ids)
        return float((theirs(ids).logits - expected).abs().max() / expected.abs().max())


def save(run: Path, model: torch.nn.Module, step: int) -> None:
    CheckpointFolder(run / "checkpoints").save(step, model.state_dict(), {}, {})


@pytest.mark.slow
@pytest.mark.parametrize("settings", SHAPES.values(), ids=SHAPES)
def test_logits_and_greedy_text_agree(
    make_run: MakeRun, tmp_path: Path, settings: dict[str, Any], request: pytest.FixtureRequest
) -> None:
    run, out = make_run(**settings), tmp_path / "out"
    export_huggingface(run, out)
    theirs, ours = load(out), LanguageModel.load(run, device="cpu")
    assert theirs.dtype == torch.float32
    kind = "Qwen3" if settings.get("qk_norm") else "Llama"
    is_own = request.node.callspec.id.startswith("ours")
    assert type(theirs).__name__ == f"{'Groundup' if is_own else kind}ForCausalLM"
    assert ("trust_remote_code=True" in (out / "README.md").read_text("utf-8")) == is_own
    assert largest_difference(theirs, ours) < 1e-5
    config = json.loads((out / "generation_config.json").read_text("utf-8"))
    lacking = list(range(300, settings.get("vocab_size", 300)))
    assert config.get("suppress_tokens", []) == lacking
    tokenizer = transformers.AutoTokenizer.from_pretrained(out, local_files_only=True)
    inputs = tokenizer(PROMPT, return_tensors="pt")
    ids = theirs.generate(**inputs, max_new_tokens=20, do_sample=False)[0].tolist()
    text = tokenizer.decode(ids[inputs["input_ids"].shape[1] :], skip_special_tokens=True)
    # transformers shows an incomplete character as U+FFFD.
    expected = ours.generate(PROMPT, max_tokens=20, temperature=0)
    assert text.rstrip("\ufffd") == expected.rstrip("\ufffd")
    # Imported and exported again, the files are identical.
    export_huggingface(import_huggingface(out, "back", runs_folder=tmp_path), tmp_path / "again")
    for name in ("model.safetensors", "tokenizer.json", "config.json", "generation_config.json"):
        assert (tmp_path / "again" / name).read_bytes() == (out / name).read_bytes(), name


@torch.no_grad()
def test_our_modeling_file_masks_documents_with_cache_beams_and_padding(
    make_run: MakeRun, tmp_path: Path
) -> None:
    run = make_run(**SHAPES["ours"])
    export_huggingface(run, tmp_path / "out", dtype="bfloat16")
    export_huggingface(run, tmp_path / "other")
    theirs, ours = load(tmp_path / "other"), LanguageModel.load(run, device="cpu").model
    assert load(tmp_path / "out").dtype == torch.bfloat16
    ids = torch.randint(299, (3, 16), generator=torch.Generator().manual_seed(0))
    ids[0, 5] = ids[1, 3] = ids[1, 9] = 299
    torch.testing.assert_close(theirs(ids).logits, ours(ids), rtol=0, atol=1e-5)
    mask = torch.ones_like(ids)
    # One text, and two that are left-padded with the document separator.
    padded, mask[1, :4], mask[2, :9] = ids.clone(), 0, 0
    padded[1, :4] = padded[2, :9] = 299
    options = {"attention_mask": mask, "max_new_tokens": 12, "eos_token_id": None}
    found = theirs.generate(padded, do_sample=False, **options)
    for row, first in enumerate((0, 4, 9)):
        text = ids[row : row + 1, first:]
        for _ in range(12):
            text = torch.cat([text, ours(text)[:, -1:].argmax(-1)], dim=1)
        assert torch.equal(found[row, first:], text[0])
    options["num_beams"] = 3
    found = theirs.generate(padded, do_sample=False, **options)
    options |= {"do_sample": False, "use_cache": False}
    assert torch.equal(found, theirs.generate(padded, **options))
    loss = ours.loss(ids[:, :-1], ids[:, 1:])
    torch.testing.assert_close(theirs(ids, labels=ids).loss, loss, rtol=1e-5, atol=1e-5)


def test_our_own_architecture_is_imported_with_all_settings(
    make_run: MakeRun, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    export_huggingface(make_run(**SHAPES["ours"]), out)
    config_json = json.loads((out / "config.json").read_text("utf-8"))
    own = config_json["groundup"]
    for change, complaint in (
        ({"groundup": own | {"later": 1}}, "unknown setting later"),
        ({"groundup": own | {"feed_forward": "maxout"}}, "feed_forward is 'maxout'"),
        ({"groundup": own | {"qk_norm": False}}, "query_norm"),
        ({"groundup": [], "architectures": ["GroundupForCausalLM"]}, "is missing"),
    ):
        (out / "config.json").write_text(json.dumps(config_json | change), "utf-8")
        with pytest.raises(GroundupError, match=complaint):
            import_huggingface(out, "back", runs_folder=tmp_path)
    (out / "config.json").write_text(json.dumps(config_json), "utf-8")
    back = import_huggingface(out, "back", runs_folder=tmp_path, context_length=20)
    assert LanguageModel.load(back).model.config.context_length == 20
    assert len(export_huggingface(back, out, force=True)) == 8


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


def test_force_only_replaces_exports(
    make_run: MakeRun, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, out = make_run(), tmp_path / "out"
    export_huggingface(run, out)
    with pytest.raises(ConfigError, match=r"not empty.*--force"):
        export_huggingface(run, out)
    (out / "model-00001-of-00002.safetensors").touch()
    export_huggingface(run, out, force=True)
    assert not (out / "model-00001-of-00002.safetensors").exists()
    for name, key in (
        ("a.tex", "contains a"),
        ("README.md", "not a groundup"),
        ("x.safetensors", "contains"),
    ):
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
    with pytest.raises(ConfigError, match="the current folder"):
        export_huggingface(run, ".", force=True)
