"""`groundup tokenizer inspect`: how a text becomes ids, step by step and in colour."""

import sys
from typing import TYPE_CHECKING

from tyro.conf import Positional

from groundup.cli.shared import TokenizerFlags
from groundup.cli.terminal import as_text, colour_tokens, show_character

if TYPE_CHECKING:
    from rich.text import Text

    from groundup.tokenizer.inspection import Explanation, PreToken


class Arguments(TokenizerFlags):
    """Show how a text becomes ids: code points, UTF-8 bytes, pre-tokens, the merges that fired."""

    text: Positional[str]
    """The text to follow."""

    max_characters: int = 200
    """Show the code points of at most this many characters."""


def run(arguments: Arguments) -> None:
    """Explain and print."""
    from rich.console import Console

    from groundup.tokenizer.inspection import explain

    explanation = explain(arguments.read(arguments.tokenizer), as_text(arguments.text))
    # Off a terminal a line is never wrapped: it may be read by another program.
    width = None if sys.stdout.isatty() else 1_000_000
    console = Console(highlight=False, width=width, soft_wrap=True)
    for line in _lines(explanation, arguments.max_characters):
        console.print(line, soft_wrap=True)


def _lines(explanation: "Explanation", max_characters: int) -> "list[Text]":
    from rich.text import Text

    lines = [Text("code points", style="bold")]
    for point in explanation.code_points[:max_characters]:
        line = Text(f"  {point.number:<9} ", style="cyan")
        line.append(f"{point.utf8.hex(' '):<12} ", style="dim")
        line.append(f"{show_character(point.character)}  {point.name}", style="default")
        lines.append(line)
    if len(explanation.code_points) > max_characters:
        lines.append(Text(f"  … and {len(explanation.code_points) - max_characters:,} more"))
    lines.append(Text(f"pre-tokens ({len(explanation.pre_tokens)})", style="bold"))
    for pre_token in explanation.pre_tokens:
        lines.extend(_pre_token_lines(pre_token))
    lines.append(Text("tokens", style="bold"))
    tokens = [token for pre_token in explanation.pre_tokens for token in pre_token.tokens]
    lines.append(Text("  ").append_text(colour_tokens(tokens)))
    lines.append(Text(f"ids ({len(explanation.ids)})", style="bold"))
    lines.append(Text("  " + " ".join(map(str, explanation.ids))))
    return lines


def _pre_token_lines(pre_token: "PreToken") -> "list[Text]":
    from rich.text import Text

    head = Text(f"  {pre_token.text!r}")
    if pre_token.is_special:
        head.append("  special token", style="red")
    if pre_token.is_whole_word:
        head.append("  a vocabulary entry as a whole", style="red")
    lines = [head]
    if not pre_token.is_special and not pre_token.is_whole_word:
        lines.append(Text("    bytes       ").append_text(colour_tokens(pre_token.start)))
    for step in pre_token.steps:
        line = Text(f"    merge {step.rank + 1:<5} ", style="dim").append_text(
            colour_tokens(step.symbols)
        )
        lines.append(line)
    ids = " ".join(map(str, pre_token.ids))
    lines.append(Text(f"    ids         {ids}", style="green"))
    return lines
