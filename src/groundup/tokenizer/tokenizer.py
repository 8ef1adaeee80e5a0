"""The tokenizer a person holds: text to ids and back.

The work is done by the native core; what a tokenizer is made of is a `TokenizerDefinition`, and
reading and writing files is `formats`.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from groundup.errors import TokenizerError
from groundup.runtime import num_cores
from groundup.tokenizer.chat_template import CHAT_TOKENS, CHATML, ChatTemplate
from groundup.tokenizer.definition import (
    SpecialTokens,
    TokenizerDefinition,
    add_to_vocab,
    assign_special_tokens,
)
from groundup.tokenizer.formats import read_definition, read_gpt2_files, write_definition
from groundup.tokenizer.native import Encoder, as_array
from groundup.tokenizer.patterns import GPT2, Pattern, find_pattern
from groundup.tokenizer.streaming import (
    StreamingDecoder,
    encode_pieces,
    without_lone_surrogates,
)

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from groundup.tokenizer.formats import FormatName

# Below this much text a second thread costs more than it saves.
_BYTES_PER_THREAD = 1 << 16


class Tokenizer:
    """Byte-level BPE. Any text can be encoded, and decoding gives it back unchanged, but for text
    that another project's pattern removes.

    Special tokens given here are kept whole, the longest first where they overlap; ones missing
    from the vocabulary are appended to it. A special token that is not given is ordinary text.
    Safe to use from many threads. The first merge was learned first; the pattern is a name or a
    regular expression.
    """

    def __init__(
        self,
        vocab: dict[int, bytes],
        merges: list[tuple[bytes, bytes]],
        special_tokens: list[str] | None = None,
        *,
        pattern: str | Pattern | None = None,
    ) -> None:
        ids = assign_special_tokens(vocab, special_tokens or [])
        whole = {**vocab, **add_to_vocab({}, ids)}
        self._set_up(TokenizerDefinition(whole, list(merges), ids, find_pattern(pattern or GPT2)))

    @classmethod
    def from_definition(cls, definition: TokenizerDefinition) -> Tokenizer:
        """A tokenizer with any pattern and any ids."""
        tokenizer = cls.__new__(cls)
        tokenizer._set_up(definition)
        return tokenizer

    @classmethod
    def from_files(
        cls,
        vocab_filepath: str | os.PathLike[str],
        merges_filepath: str | os.PathLike[str],
        special_tokens: list[str] | None = None,
    ) -> Tokenizer:
        """Read GPT-2's pair of files, `vocab.json` and `merges.txt`."""
        return cls.from_definition(read_gpt2_files(vocab_filepath, merges_filepath, special_tokens))

    @classmethod
    def load(
        cls,
        path: str | os.PathLike[str],
        pattern: str | Pattern | None = None,
        special_tokens: SpecialTokens | None = None,
    ) -> Tokenizer:
        """Read our JSON, a Hugging Face tokenizer.json or .tiktoken ranks, known by content.

        Pattern and special tokens are for a format that does not hold them.
        """
        return cls.from_definition(read_definition(path, pattern, special_tokens))

    def save(self, path: str | os.PathLike[str], format: FormatName = "groundup") -> None:
        """Write one JSON file, or another format; for gpt2, the path is a folder."""
        write_definition(self.definition, path, format)

    def with_chat(self, template: str = CHATML) -> Tokenizer:
        """This tokenizer with a chat template, and with the special tokens of ChatML that it uses.

        Ones that are missing are appended, so the vocabulary may grow.
        """
        ChatTemplate(template)
        used = [text for text in CHAT_TOKENS if text in template]
        definition = self.definition.with_special_tokens(used)
        return Tokenizer.from_definition(dataclasses.replace(definition, chat_template=template))

    def _set_up(self, definition: TokenizerDefinition) -> None:
        definition.validate()
        self.definition = definition
        self.vocab, self.merges = definition.vocab, definition.merges
        self.special_tokens, self.pattern = definition.special_tokens, definition.pattern
        self.chat_template = definition.chat_template
        """How a conversation becomes a text, in Jinja; None before `with_chat`."""
        self.vocab_size = definition.vocab_size
        """One more than the greatest id."""
        tokens = list(map(definition.vocab.get, range(self.vocab_size)))
        special = [(text.encode(), id) for text, id in definition.special_tokens.items()]
        splitter = self.pattern.splitter
        try:
            self._encoder = Encoder(
                tokens, definition.merges, special, splitter, definition.whole_words
            )
        except ValueError as error:
            raise TokenizerError(f"{error}; vocabulary and merges do not belong together") from None
        self.id_type = np.dtype(np.uint16 if self._encoder.id_bytes == 2 else np.uint32)
        """uint16 where the vocabulary allows, else uint32."""

    @property
    def id(self) -> str:
        """The content id: equal for tokenizers that give every text the same ids."""
        return self.definition.content_id()

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        try:
            return self._encoder.encode(text)
        except UnicodeEncodeError:
            return self._encoder.encode(without_lone_surrogates(text))

    def encode_to_numpy(self, text: str) -> npt.NDArray[Any]:
        """The ids of a text as an array of uint16 or uint32."""
        try:
            ids = self._encoder.encode_array(text)
        except UnicodeEncodeError:
            ids = self._encoder.encode_array(without_lone_surrogates(text))
        return as_array(ids, self.id_type)

    def encode_batch(
        self, texts: Sequence[str], num_threads: int | None = None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """The ids of many documents, and where each begins: `ids[offsets[i]:offsets[i + 1]]`."""
        texts = texts if isinstance(texts, list | tuple) else list(texts)
        threads = self._num_threads(num_threads, sum(map(len, texts)))
        try:
            ids, offsets = self._encoder.encode_batch(texts, threads, -1)
        except UnicodeEncodeError:
            cleaned = [
                without_lone_surrogates(text) if isinstance(text, str) else text for text in texts
            ]
            ids, offsets = self._encoder.encode_batch(cleaned, threads, -1)
        return as_array(ids, self.id_type), as_array(offsets, np.int64)

    def encode_documents(
        self,
        data: Buffer,
        bounds: npt.NDArray[np.int64],
        num_threads: int | None = None,
        end_id: int | None = None,
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """The same for documents in one buffer of UTF-8, `bounds` giving begin and end of each.

        Special tokens inside a document are kept whole. `end_id` is put behind every document.
        """
        if end_id is not None and end_id not in self.vocab:
            raise TokenizerError(f"end_id {end_id} is not in the vocabulary")
        end = -1 if end_id is None else end_id
        bounds = np.ascontiguousarray(bounds, dtype=np.int64)
        total = int((bounds[:, 1] - bounds[:, 0]).sum()) if len(bounds) else 0
        threads = self._num_threads(num_threads, total)
        ids, offsets = self._encoder.encode_documents(data, bounds, threads, end)
        return as_array(ids, self.id_type), as_array(offsets, np.int64)

    def encode_iterable(self, iterable: Iterable[str]) -> Iterator[int]:
        """The ids of a text that comes in pieces, lazily, in memory that does not grow with it.

        They are the ids of the joined text: what a later piece could still change is held back.
        """
        return encode_pieces(self._encoder, iterable)

    def encode_beginning(self, data: Buffer) -> tuple[npt.NDArray[Any], int]:
        """The ids of a beginning of some UTF-8 that hold whatever follows it, and its bytes.

        It is empty where the text is too short to say. A long pre-token may be cut inside.
        """
        try:
            ids, used = self._encoder.encode_part(data)
        except ValueError as error:
            raise TokenizerError(str(error)) from None
        return as_array(ids, self.id_type), used

    def decode(self, ids: Iterable[int]) -> str:
        """The text of some ids; bytes that are not UTF-8 become U+FFFD."""
        try:
            return self._encoder.decode(_as_sequence(ids))
        except (KeyError, TypeError) as error:
            raise self._cannot_decode(error) from None

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """The bytes of some ids, as they are."""
        try:
            return self._encoder.decode_bytes(_as_sequence(ids))
        except (KeyError, TypeError) as error:
            raise self._cannot_decode(error) from None

    def decode_stream(self) -> StreamingDecoder:
        """A decoder that takes one id at a time and never gives out half a character."""
        return StreamingDecoder(self.decode_bytes)

    def __len__(self) -> int:
        return self.vocab_size

    def __repr__(self) -> str:
        return f"Tokenizer({self.vocab_size} tokens, {self.pattern.name} pattern)"

    def __reduce__(self) -> tuple[Any, ...]:
        return Tokenizer.from_definition, (self.definition,)

    def _num_threads(self, wanted: int | None, num_bytes: int) -> int:
        if wanted is not None and wanted < 1:
            raise TokenizerError(f"num_threads is {wanted}; it must be at least 1")
        threads = num_cores() if wanted is None else wanted
        return max(1, min(threads, num_bytes // _BYTES_PER_THREAD))

    def _cannot_decode(self, error: KeyError | TypeError) -> TokenizerError:
        return TokenizerError(
            f"cannot decode: {error.args[0]}; ids of this tokenizer are integers from 0 to "
            f"{self.vocab_size - 1}"
        )


def _as_sequence(ids: Iterable[int]) -> Sequence[int] | npt.NDArray[Any]:
    if isinstance(ids, list | tuple):
        return ids
    if isinstance(ids, np.ndarray) or hasattr(ids, "__array__"):
        array = np.asarray(ids)
        if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
            found = f"{array.ndim} dimensions and type {array.dtype}"
            raise TokenizerError(f"cannot decode an array of {found}; it is 1-D and of integers")
        return np.ascontiguousarray(array)
    return list(ids)
