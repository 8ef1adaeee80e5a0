"""One way into every trainer: the path of a file of documents in, tokens and merges out.

Tools that read files get the path; those that want strings get the documents one after another, and
reading them is part of the time, as it is for the others. Importing a tool is not.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from corpora import SEPARATOR


class Trained(NamedTuple):
    """A vocabulary; `merges` is None where a tool does not tell them."""

    tokens: list[bytes]
    merges: list[tuple[bytes, bytes]] | None


# Trains when called, and gives a function that tells the result, which is not timed.
Train = Callable[[str, int], Callable[[], Trained]]


def documents_of(path: str) -> Iterator[str]:
    """The documents of a file, read a line at a time so that memory stays the trainer's own."""
    lines: list[str] = []
    with open(path, encoding="utf-8", newline="") as file:
        for line in file:
            if SEPARATOR not in line:
                lines.append(line)
                continue
            first, *rest = line.split(SEPARATOR)
            lines.append(first)
            for part in rest:
                if document := "".join(lines):
                    yield document
                lines = [part]
    if document := "".join(lines):
        yield document


def _groundup(threads: int) -> Train:
    import groundup.text_files
    import groundup.tokenizer.training

    def train(path: str, vocab_size: int) -> Callable[[], Trained]:
        vocab, merges = groundup.tokenizer.training.train_bpe(
            path, vocab_size, [SEPARATOR], num_threads=threads
        )
        return lambda: Trained(list(vocab.values()), merges)

    return train


def _gigatoken(threads: int) -> Train:
    import gigatoken

    def train(path: str, vocab_size: int) -> Callable[[], Trained]:
        vocab, merges = gigatoken.train_bpe(
            path, vocab_size, [SEPARATOR], separator=SEPARATOR.encode()
        )
        return lambda: Trained(list(vocab.values()), merges)

    return train


def _tokenizers(threads: int) -> Train:
    from tokenizers import Tokenizer
    from tokenizers.models import BPE
    from tokenizers.pre_tokenizers import ByteLevel
    from tokenizers.trainers import BpeTrainer

    from groundup.tokenizer.formats.spelling import read_spelling

    def train(path: str, vocab_size: int) -> Callable[[], Trained]:
        tokenizer = Tokenizer(BPE())
        tokenizer.pre_tokenizer = ByteLevel(add_prefix_space=False)
        trainer = BpeTrainer(
            vocab_size=vocab_size,
            special_tokens=[SEPARATOR],
            initial_alphabet=ByteLevel.alphabet(),
            show_progress=False,
        )
        tokenizer.train_from_iterator(documents_of(path), trainer)

        def tell() -> Trained:
            spelled = [word for word in tokenizer.get_vocab() if word != SEPARATOR]
            return Trained([*map(read_spelling, spelled), SEPARATOR.encode()], None)

        return tell

    return train


_TRAINERS: dict[str, Callable[[int], Train]] = {
    "groundup": _groundup,
    "gigatoken": _gigatoken,
    "tokenizers": _tokenizers,
}
RIVALS = tuple(name for name in _TRAINERS if name != "groundup")


def open_trainer(tool: str, threads: int) -> Train:
    """A tool by its name, imported and ready to be timed."""
    return _TRAINERS[tool](threads)
