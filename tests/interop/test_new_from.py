"""`groundup new --from` starts from Hugging Face checkpoints in common layouts, and improves
them."""

import json
from pathlib import Path

import pytest

from groundup.cli.main import main
from groundup.files import read_json_lines
from groundup.generation import LanguageModel
from groundup.runs.folder import RunFolder

from .conftest import TEXT, MakeCheckpoint


@pytest.mark.slow
@pytest.mark.parametrize("family", ["llama, tied", "qwen3"])
def test_new_starts_from_a_hugging_face_folder(
    make_checkpoint: MakeCheckpoint,
    family: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    folder = make_checkpoint(family, max_position_embeddings=64)
    given = {"temperature": 0.6, "top_k": 20, "do_sample": True, "eos_token_id": 299}
    (folder / "generation_config.json").write_text(json.dumps(given))
    monkeypatch.chdir(tmp_path)
    for number in range(20):
        (tmp_path / f"notes/{number}.md").parent.mkdir(exist_ok=True)
        (tmp_path / f"notes/{number}.md").write_text(f"Note {number}. {TEXT}")
    words = ["new", "notes", "--from", "checkpoint", "--num-steps", "6", "--max-tokens", "4"]
    assert main([*words, "--device", "cpu", "--minutes", "100"]) == 0
    page = capsys.readouterr().out
    assert "Tokenizer: that of runs/checkpoint-imported" in page and "→" in page
    run = RunFolder("runs/notes-from-checkpoint-imported")
    config, model = run.read_config(), LanguageModel.load(run.path)
    assert config.start_from == Path("runs/checkpoint-imported") and config.continue_training
    assert model.tokenizer.id == LanguageModel.load("runs/checkpoint-imported").tokenizer.id
    # It starts at the checkpoint's loss, and ends with a lower one.
    losses = [one["validation_loss"] for one in read_json_lines(run.metrics_file)
              if "validation_loss" in one]  # fmt: skip
    assert losses[-1] < losses[0]
    # The same command keeps everything, and the run can be continued like any other.
    assert main([*words, "--device", "cpu", "--minutes", "100"]) == 0
    assert "done before, and kept" in capsys.readouterr().out
    assert main(["more", str(run.path), "--num-steps", "2", "--device", "cpu"]) == 0
    more = RunFolder("runs/notes-from-checkpoint-imported-more")
    assert "weights and the optimizer" in more.log_file.read_text()
    assert main(["new", "notes", "--from", "checkpoint", "--vocab-size", "300"]) == 2
    assert main(["new", "notes", "--from", "nowhere"]) == 2
