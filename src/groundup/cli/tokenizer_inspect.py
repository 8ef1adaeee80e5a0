"""`groundup tokenizer inspect`: how a text becomes ids, step by step."""

from collections.abc import Sequence

from groundup.cli.arguments import Positional
from groundup.cli.shared import TokenizerFlags
from groundup.cli.terminal import as_text, printable


class Arguments(TokenizerFlags):
    """Show how a text is tokenized: pre-tokens, bytes, and the merges applied."""

    text: Positional[str]
    """Text to tokenize."""


def run(arguments: Arguments) -> None:
    """Explain and print."""
    from groundup.tokenizer.inspection import explain

    pre_tokens = explain(arguments.read(arguments.tokenizer), as_text(arguments.text))
    print(f"pre-tokens ({len(pre_tokens)})")
    for pre_token in pre_tokens:
        note = "  special token" if pre_token.is_special else ""
        if pre_token.is_whole_word:
            note = "  a vocabulary entry as a whole"
        print(f"  {pre_token.text!r}{note}")
        if not note:
            print(f"    bytes       {_line(pre_token.start)}")
        for step in pre_token.steps:
            print(f"    merge {step.rank + 1:<5} {_line(step.symbols)}")
        print(f"    ids         {' '.join(map(str, pre_token.ids))}")
    print(f"tokens\n  {_line([token for one in pre_tokens for token in one.tokens])}")
    ids = [id for pre_token in pre_tokens for id in pre_token.ids]
    print(f"ids ({len(ids)})\n  {' '.join(map(str, ids))}")


def _line(tokens: Sequence[bytes]) -> str:
    return " | ".join(map(_show, tokens))


def _show(token: bytes) -> str:
    """A token with blanks made visible; where it is not text, each byte as the character that
    stands for it in GPT-2's vocabulary."""
    from groundup.tokenizer.formats.spelling import spell_bytes

    try:
        return printable(token.decode().replace(" ", "␠"))
    except UnicodeDecodeError:
        return spell_bytes(token)
