"""The flags with which several verbs name a tokenizer, and how a tokenizer is read by them."""

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tyro.conf import UseAppendAction

from groundup.cli.streams import as_text

if TYPE_CHECKING:
    from groundup.tokenizer.definition import TokenizerDefinition


@dataclass(frozen=True, kw_only=True)
class SplitFlags:
    """What a tokenizer file may not say itself."""

    pattern: str | None = None
    """The split pattern, for tokenizer files that do not say theirs."""

    special_token: UseAppendAction[tuple[str, ...]] = ()
    """A special token besides the tokenizer's own; repeat for more."""

    def read(self, path: Path) -> "TokenizerDefinition":
        """Read a tokenizer file of any known format."""
        from groundup.tokenizer.formats import read_definition

        special_tokens = list(map(as_text, self.special_token)) or None
        return read_definition(path, pattern=self.pattern, special_tokens=special_tokens)


@dataclass(frozen=True, kw_only=True)
class TokenizerFlags(SplitFlags):
    """A tokenizer by its file."""

    tokenizer: Path = Path("tokenizer.json")
    """The tokenizer file, of any known format."""

    def definition(self) -> "TokenizerDefinition":
        """What the file holds."""
        return self.read(self.tokenizer)
