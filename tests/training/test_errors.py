"""What cannot be a run is one sentence that names what is wrong, before anything is made."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from torch import nn

from groundup.errors import GroundupError
from groundup.training import train

from .conftest import MakeConfig

IDS = np.zeros(90, int)
# Of a run that tunes another one.
TUNED = {"num_steps": 3}


def loss(*_: Any) -> Any:
    raise AssertionError


@pytest.mark.parametrize(
    ("changes", "parts", "noun"),
    [
        ({"samples.every_steps": 5, "samples.prompts": []}, {}, r"samples\.prompts"),
        ({"data.shards": "nowhere"}, {}, "nowhere"),
        ({"data.tokenizer": "nowhere.json"}, {}, r"nowhere\.json"),
        ({"model.vocab_size": 299}, {}, "vocab_size 299"),
        ({"start_from": "nowhere"}, {}, "nowhere"),
        ({"tuning.lora_rank": 2}, {}, "lora_rank"),
        ({}, {"data": np.array([1, 2, 999] * 50)}, "ids from 1 to 999"),
        ({}, {"data": np.zeros((3, 3), int)}, "one-dimensional"),
        ({}, {"data": np.zeros(2, int)}, "2 tokens"),
        ({}, {"model": nn.Linear(2, 2)}, "TransformerLM"),
        ({"z_loss": 0.1}, {"loss": loss}, "z_loss"),
        ({"multi_token_weight": 0.1}, {"loss": loss}, "multi_token_weight"),
        ({"tuning.chats": ("a.jsonl",)}, {"loss": loss}, r"tuning\.chats"),
        ({"tuning.chats": ("a.jsonl",)}, {"data": IDS}, r"tuning\.chats"),
        ({"data.mix": ("a=1",)}, {"data": IDS}, r"data\.mix"),
        ({"model.document_separator": "auto"}, {"data": IDS}, "needs shards"),
        ({"model.document_separator": 300}, {}, "document_separator 300"),
        (TUNED | {"model.document_separator": 9}, {}, r"tuning\.chats"),
        (TUNED | {"model.d_model": 32}, {}, r"model\.d_model is 32, but 16 there"),
        (TUNED | {"model.rope_theta": 5e5}, {}, "rope_theta"),
        (TUNED | {"model.vocab_size": 300}, {}, "vocab_size 300"),
        (TUNED | {"tuning.template": "bad.jinja"}, {}, "UTF-8"),
    ],
)
def test_what_cannot_be_a_run_is_named(
    make_config: MakeConfig,
    make_tuning: MakeConfig,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    changes: dict[str, Any],
    parts: dict[str, Any],
    noun: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("bad.jinja").write_bytes(b"\xff")
    make = make_tuning if changes.keys() >= TUNED.keys() else make_config
    with pytest.raises(GroundupError, match=noun):
        train(make("bad", changes), **parts)
    assert not (tmp_path / "runs" / "bad" / "config.yaml").exists()
