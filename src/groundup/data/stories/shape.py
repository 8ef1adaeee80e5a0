"""What a kind of story needs besides its rules: `NAME_story` tells it, `NAME_moral` closes it."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True)
class Shape:
    """A row of each table and the words are fixed when a story begins, and who is {helper}."""

    name: str
    tables: tuple[str, ...]
    helpers: tuple[str, ...] = ("elder",)
    kinds: tuple[str, ...] = ("child", "animal")
    words: Mapping[str, str] = field(default_factory=dict)
