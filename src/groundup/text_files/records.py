"""Records with a text in each: packed into batches, their bytes held to be UTF-8."""

from collections.abc import Sequence

import numpy as np

from groundup.text_files.documents import DocumentBatch, Errors

LONGEST_RECORD_BYTES = 256 << 20
"""A record is held several times over while it is taken apart."""


class ReplacedText(bytes):
    """A text with U+FFFD for what was not UTF-8."""


def pack_texts(texts: Sequence[bytes | None], offset: int, read_bytes: int) -> DocumentBatch:
    """A batch of texts; None is one that is left out, since it is not UTF-8 or no text.

    texts: one for each record.
    offset, read_bytes: as a batch has them.
    """
    kept = [text for text in texts if text is not None]
    lengths = np.fromiter(map(len, kept), np.int64, len(kept))
    ends = np.cumsum(lengths)
    bounds = np.stack([ends - lengths, ends], axis=1)
    num_skipped = len(texts) - len(kept)
    num_replaced = sum(isinstance(text, ReplacedText) for text in kept)
    return DocumentBatch(b"".join(kept), bounds, offset, read_bytes, num_skipped, num_replaced)


def encode_text(text: str, errors: Errors, *, is_mended: bool = False) -> bytes | None:
    """The UTF-8 of a text with surrogates for what is no character; None for one to leave out.

    text: as it was read.
    errors: strict raises UnicodeEncodeError.
    is_mended: whether it was cut from bytes in which something was replaced.
    """
    try:
        encoded = text.encode()
        return ReplacedText(encoded) if is_mended and "\ufffd" in text else encoded
    except UnicodeEncodeError:
        if errors == "strict":
            raise
        if errors == "skip":
            return None
        # Bytes that were no UTF-8 stand as halves of surrogate pairs, and pairs as pairs.
        pairs = text.encode("utf-16-le", "surrogatepass")
        return ReplacedText(pairs.decode("utf-16-le", "replace").encode())
