"""The public tokenizer: encodes text to ids and decodes ids to text.

The native core does the work. `TokenizerDefinition` holds the vocabulary and merges, and `formats`
reads and writes files.
"""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal, Unpack

import numpy as np
import numpy.typing as npt

from groundup.errors import TokenizerError, did_you_mean
from groundup.runtime import num_cores
from groundup.text_files import END_OF_TEXT
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
    encode_pieces,
    without_lone_surrogates,
)
from groundup.tokenizer.training import Inputs, TrainingOptions, train_from_files

if TYPE_CHECKING:
    from typing_extensions import Buffer

    from groundup.tokenizer.formats import FormatName

# With less text per thread, starting the thread costs more than it saves.
_BYTES_PER_THREAD = 1 << 16


class Tokenizer:
    """A byte-level BPE tokenizer. Any text can be encoded, and decoding restores it exactly, except
    for text that an imported split pattern removes.

    `merges` are in the order in which they were learned; `pattern` is the name of a split pattern
    or a regular expression. Special tokens are kept whole, the longest first if they overlap; ones
    missing from the vocabulary are appended to it. A special token that is not listed is ordinary
    text. Thread-safe.
    """

    def __init__(
        self,
        vocab: dict[int, bytes],
        merges: list[tuple[bytes, bytes]],
        special_tokens: list[str] | None = None,
        *,
        pattern: str | Pattern | None = None,
    ) -> None:
        if not isinstance(vocab, dict) or not {*map(type, vocab.values())} <= {bytes}:
            raise TokenizerError("vocab must map ids to bytes: {0: b'a', 1: b'b', …}")
        ids = assign_special_tokens(vocab, special_tokens or [])
        whole = {**vocab, **add_to_vocab({}, ids)}
        self._set_up(TokenizerDefinition(whole, list(merges), ids, find_pattern(pattern or GPT2)))

    @classmethod
    def train(
        cls,
        files: Inputs,
        vocab_size: int,
        special_tokens: Sequence[str] = (END_OF_TEXT,),
        **options: Unpack[TrainingOptions],
    ) -> Tokenizer:
        """Train on files as `train_bpe` does; `vocab_size` includes the special tokens."""
        learned, _ = train_from_files(files, vocab_size, special_tokens, **options)
        return cls.from_definition(learned)

    @classmethod
    def from_definition(cls, definition: TokenizerDefinition) -> Tokenizer:
        """Make a tokenizer from a definition, with any pattern and any ids."""
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
        """Read our JSON, Hugging Face's tokenizer.json or tiktoken ranks, detected by content.

        Give `pattern` and `special_tokens` for formats that do not store them.
        """
        return cls.from_definition(read_definition(path, pattern, special_tokens))

    def save(self, path: str | os.PathLike[str], format: FormatName = "groundup") -> None:
        """Write the tokenizer to one JSON file."""
        write_definition(self.definition, path, format)

    def with_chat(self, template: str = CHATML) -> Tokenizer:
        """Return this tokenizer with a chat template and the ChatML special tokens it uses.

        Missing tokens are appended, so the vocabulary may grow.
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
        """The Jinja template that renders conversations, or None; see `with_chat`."""
        self.vocab_size = self.n_vocab = definition.vocab_size
        """The largest id plus one; tiktoken calls it n_vocab."""
        self._encoder = self._make_encoder(self.special_tokens)
        self._other_encoders: dict[frozenset[str], Encoder] = {}
        self.id_type = np.dtype(np.uint16 if self.vocab_size <= 1 << 16 else np.uint32)
        """uint16 if all ids fit, else uint32."""

    def _make_encoder(self, special_tokens: Collection[str]) -> Encoder:
        """Make an encoder that keeps these special tokens whole and treats others as text."""
        tokens = list(map(self.vocab.get, range(self.vocab_size)))
        if hidden := self.special_tokens.keys() - special_tokens:
            merged = {left + right for left, right in self.merges}
            for token, id in ((text.encode(), self.special_tokens[text]) for text in hidden):
                if self._ids_by_token[token] != id or (len(token) > 1 and token not in merged):
                    tokens[id] = None
        special = [(text.encode(), self.special_tokens[text]) for text in special_tokens]
        splitter, whole_words = self.pattern.splitter, self.definition.whole_words
        try:
            return Encoder(tokens, self.merges, special, splitter, whole_words)
        except ValueError as error:
            raise TokenizerError(f"{error}; use the merges that fit the vocabulary") from None

    @property
    def id(self) -> str:
        """The content id: tokenizers with the same id encode every text to the same ids."""
        return self.definition.content_id()

    def encode(
        self, text: str, *, allowed_special: Literal["all"] | Collection[str] = "all"
    ) -> list[int]:
        """Encode a text. Special tokens in `allowed_special` are kept whole; others are ordinary
        text, never an error (tiktoken allows none by default and raises if it finds one)."""
        encoder = self._encoder if allowed_special == "all" else self._encoder_of(allowed_special)
        try:
            return encoder.encode(text)
        except UnicodeEncodeError:
            return encoder.encode(without_lone_surrogates(text))
        except TypeError:
            raise _not_a_text(text) from None

    def encode_ordinary(self, text: str) -> list[int]:
        """Encode untrusted text: special tokens in it are ordinary text."""
        return self.encode(text, allowed_special=())

    def _encoder_of(self, allowed_special: Collection[str]) -> Encoder:
        allowed = frozenset(allowed_special)
        if unknown := allowed - self.special_tokens.keys():
            hint = did_you_mean(min(unknown), self.special_tokens)
            raise TokenizerError(
                f"allowed_special must be 'all' or special tokens, not {min(unknown)!r}: {hint}"
            )
        if allowed not in self._other_encoders:
            self._other_encoders[allowed] = self._make_encoder(allowed)
        return self._other_encoders[allowed]

    def encode_to_numpy(self, text: str) -> npt.NDArray[Any]:
        """Encode a text to an array of uint16 or uint32."""
        try:
            ids = self._encoder.encode_array(text)
        except UnicodeEncodeError:
            ids = self._encoder.encode_array(without_lone_surrogates(text))
        except TypeError:
            raise _not_a_text(text) from None
        return as_array(ids, self.id_type)

    def encode_batch(
        self, texts: Sequence[str], num_threads: int | None = None
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.int64]]:
        """Return all ids and the offsets: document i is `ids[offsets[i]:offsets[i + 1]]`."""
        if isinstance(texts, str | bytes):
            raise TypeError("encode_batch takes a list of texts; use encode for one text")
        texts = texts if isinstance(texts, list | tuple) else list(texts)
        if not all(isinstance(text, str | bytes) for text in texts):
            raise TypeError("encode_batch takes a list of texts; use decode for ids")
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
        """Encode documents in one UTF-8 buffer; each row of `bounds` is a document's begin and end.

        Special tokens inside a document are kept whole. `end_id` is appended to every document.
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
        """Lazily encode a text that comes in pieces, in constant memory.

        Yields the ids of the joined text: text that a later piece could affect is held back.
        """
        return encode_pieces(self._encoder, iterable)

    def decode(self, ids: Iterable[int]) -> str:
        """Decode ids to text; invalid UTF-8 becomes U+FFFD."""
        try:
            return self._encoder.decode(_as_sequence(ids))
        except (KeyError, TypeError) as error:
            raise self._cannot_decode(error) from None

    def decode_bytes(self, ids: Iterable[int]) -> bytes:
        """Decode ids to their bytes, which need not be valid UTF-8."""
        try:
            return self._encoder.decode_bytes(_as_sequence(ids))
        except (KeyError, TypeError) as error:
            raise self._cannot_decode(error) from None

    @cached_property
    def _ids_by_token(self) -> dict[bytes, int]:
        return self.definition.ids_by_token()

    def token_to_id(self, token: str | bytes) -> int | None:
        """Return the id of a token given as text or bytes; None if there is no such token."""
        if isinstance(token, str):
            if token in self.special_tokens:
                return self.special_tokens[token]
            token = token.encode(errors="surrogatepass")
        return self._ids_by_token.get(token)

    def id_to_token(self, id: int) -> bytes | None:
        """Return the bytes of a token, possibly a partial character; None for an unknown id."""
        return self.vocab.get(id)

    def __len__(self) -> int:
        return self.vocab_size

    def __eq__(self, other: object) -> bool:
        """Whether both encode every text to the same ids; chat templates are ignored."""
        return self.id == other.id if isinstance(other, Tokenizer) else NotImplemented

    def __hash__(self) -> int:
        return hash(self.id)

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


def _not_a_text(text: object) -> TypeError:
    return TypeError(f"encode takes one text, not {type(text).__name__}; use encode_batch for many")


def _as_sequence(ids: Iterable[int]) -> Sequence[int] | npt.NDArray[Any]:
    if isinstance(ids, list | tuple):
        return ids
    if isinstance(ids, np.ndarray) or hasattr(ids, "__array__"):
        array = np.asarray(ids)
        if array.ndim != 1 or (array.dtype.kind not in "iu" and array.size):
            found = f"{array.ndim} dimensions and dtype {array.dtype}"
            raise TokenizerError(f"cannot decode an array of {found}; give a 1-D integer array")
        is_id = array.dtype.isnative and array.dtype in (np.uint16, np.uint32)
        return np.ascontiguousarray(array, array.dtype if is_id else np.int64)
    return list(ids)
