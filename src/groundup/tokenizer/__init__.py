"""Text to ids and back: byte-level BPE, trained, encoded and decoded by the native core."""

from groundup.tokenizer.tokenizer import Tokenizer
from groundup.tokenizer.training import train_bpe

__all__ = ["Tokenizer", "train_bpe"]
