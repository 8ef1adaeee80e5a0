"""The model card of an export has the results and lineage of its run."""

import math
from pathlib import Path
from typing import Any

import yaml

from groundup.files import hash_file, write_json_atomic
from groundup.interop import export_huggingface, import_huggingface
from groundup.tokenizer import Tokenizer

from .conftest import MakeRun


def export(run: Path, **options: Any) -> str:
    out = run.parent.parent / "out"
    export_huggingface(run, out, force=True, **options)
    return (out / "README.md").read_text("utf-8")


def rows(card: str) -> dict[str, str]:
    cells = [line.strip("|").split("|") for line in card.splitlines() if line.startswith("| ")]
    return {name.strip(): value.strip() for name, value in cells}


def test_the_card_has_metadata_and_the_results_of_the_checkpoint(make_run: MakeRun) -> None:
    run = make_run()
    with open(run / "metrics.jsonl", "a", encoding="utf-8") as file:
        file.write('{"step": 7, "validation_loss": 0.0')
    card = export(run)
    _, head, text = card.split("---\n", 2)
    front = yaml.safe_load(head)
    assert front["library_name"] == "transformers" and front["tags"] == ["groundup", "llama"]
    assert text.startswith("\n# tiny\n")
    row = rows(card)
    assert row["parameters"] == "36,768"
    assert (row["step"], row["tokens"]) == ("7", "448")
    assert row["training loss"] == "5.1250"
    assert row["validation loss"] == "5.0000"
    assert row["validation perplexity"] == f"{math.exp(5):.3f}"
    assert row["validation bits per byte"] == "3.2500"
    (run / "metrics.jsonl").unlink()
    (run / "environment.json").unlink()
    row = rows(export(run))
    assert row["run"] == "tiny" and "tokens" not in row
    assert "one document per prompt" not in card
    assert "one document per prompt" in export(make_run("masked", document_separator=299))


def test_lineage_has_content_ids(make_run: MakeRun, tokenizer: Tokenizer, runs: Path) -> None:
    run = make_run()
    row = rows(export(run))
    weights = run / "checkpoints" / "step_000007" / "model.safetensors"
    assert row["checkpoint weights"] == hash_file(weights)
    assert row["run settings"] == hash_file(run / "config.yaml")
    assert row["tokenizer"] == tokenizer.definition.content_id
    assert row["model.safetensors"] == hash_file(run.parent.parent / "out" / "model.safetensors")
    assert (row["trained by groundup"], row["commit"]) == ("0.1.0", "abc")
    # Values cannot break out of the table.
    write_json_atomic(run / "environment.json", {"git_commit": "a|b\n# <b>c</b> `d` [e](f)"})
    assert r"| commit | a\|b # \<b\>c\</b\> \`d\` \[e\](f) |" in export(run).splitlines()
    out = run.parent.parent / "out"
    card = export(import_huggingface(out, "back", runs_folder=runs))
    assert "imported into groundup" in card and "commit" not in rows(card)
    assert rows(card)["imported from"] == "out (LlamaForCausalLM)"
    assert rows(card)["imported model.safetensors"] == row["model.safetensors"]
