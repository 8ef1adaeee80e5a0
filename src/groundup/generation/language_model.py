"""A trained model and its tokenizer as one thing that continues text, loaded from a run folder."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import pydantic
import torch

from groundup.checkpoint import Checkpoint, CheckpointFolder, restore_model
from groundup.config import describe_validation_error, load_yaml
from groundup.errors import CheckpointError, ConfigError
from groundup.generation.engine import generate_ids
from groundup.generation.sampling import Sampler
from groundup.model import ModelConfig, TransformerLM
from groundup.text_files import END_OF_TEXT
from groundup.tokenizer import Tokenizer


class LanguageModel:
    """Continues text: `LanguageModel.load("runs/stories").generate("Once upon a time")`."""

    def __init__(self, model: TransformerLM, tokenizer: Tokenizer, step: int | None = None) -> None:
        """`step` says how long the model was trained, where that is known."""
        if model.config.vocab_size < tokenizer.vocab_size:
            raise CheckpointError(
                f"the tokenizer has {tokenizer.vocab_size} tokens but the model knows "
                f"{model.config.vocab_size}: they do not belong together"
            )
        self.model = model
        self.tokenizer = tokenizer
        self.step = step
        self._end_id = tokenizer.special_tokens.get(END_OF_TEXT)

    @classmethod
    def load(
        cls,
        run_folder: str | os.PathLike[str],
        checkpoint: Literal["newest", "best"] | int = "newest",
        device: torch.device | str | None = None,
    ) -> LanguageModel:
        """The model of a run at its newest or best checkpoint, or at the one of a step."""
        folder = Path(run_folder)
        config = _read_model_config(folder)
        tokenizer = Tokenizer.load(folder / "tokenizer.json")
        found = _find_checkpoint(folder, checkpoint)
        model = TransformerLM.from_config(config, device=device)
        restore_model(model, found.model_state())
        return cls(model.eval(), tokenizer, found.step)

    def generate(
        self,
        prompt: str = "",
        max_tokens: int = 256,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int | None = None,
        seed: int = 0,
    ) -> str:
        """The text that follows `prompt`, up to `max_tokens` or the end of the document.

        Without a prompt a document is begun. The same seed gives the same text.
        """
        return "".join(self.stream(prompt, max_tokens, temperature, top_p, top_k, seed))

    def stream(
        self,
        prompt: str = "",
        max_tokens: int = 256,
        temperature: float = 1.0,
        top_p: float = 1.0,
        top_k: int | None = None,
        seed: int = 0,
    ) -> Iterator[str]:
        """The same in pieces as they come, each of whole characters."""
        generator = torch.Generator().manual_seed(seed)
        ids = generate_ids(
            self.model,
            self._encode(prompt),
            max_tokens,
            Sampler.of(temperature, top_k, top_p),
            generator,
            () if self._end_id is None else (self._end_id,),
        )
        return self._decode(ids)

    def _encode(self, prompt: str) -> list[int]:
        ids = self.tokenizer.encode(prompt)
        if ids:
            return ids
        # In the shards every document but the first follows an end of text.
        if self._end_id is None:
            raise ConfigError(
                f"the prompt is empty and the tokenizer has no {END_OF_TEXT} to begin with: give "
                f"some text"
            )
        return [self._end_id]

    def _decode(self, ids: Iterator[int]) -> Iterator[str]:
        decoder = self.tokenizer.decode_stream()
        for id in ids:
            # A vocabulary padded to a round size has ids that stand for nothing.
            if id < self.tokenizer.vocab_size and (piece := decoder.push(id)):
                yield piece


def _read_model_config(folder: Path) -> ModelConfig:
    path = folder / "config.yaml"
    if not folder.is_dir():
        raise CheckpointError(f"there is no run folder {folder}: check the name, or train it first")
    if not path.is_file():
        raise CheckpointError(f"{folder} is no run folder: it has no config.yaml")
    try:
        return ModelConfig.model_validate(load_yaml(path).get("model") or {})
    except pydantic.ValidationError as error:
        complaint = describe_validation_error(error)
        raise CheckpointError(f"{path} does not describe a model: {complaint}") from error


def _find_checkpoint(folder: Path, which: Literal["newest", "best"] | int) -> Checkpoint:
    checkpoints = CheckpointFolder(folder / "checkpoints")
    if not checkpoints.steps():
        raise CheckpointError(f"{folder} has no checkpoint yet: train until one is written")
    if which == "newest":
        return checkpoints.newest()
    return checkpoints.best() if which == "best" else checkpoints.load(which)
