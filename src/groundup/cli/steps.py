"""Commands that a verb runs for a person, each shown as it could be typed."""

import shlex
from typing import Any


def take_step(title: str, words: list[Any], *, is_kept: bool = False, **options: Any) -> int:
    """Show a command and run it, unless what it makes is kept; its exit status.

    title: what it is for.
    words: what is typed after `groundup`.
    is_kept: what it makes is there already.
    options: further arguments of the verb's `run`.
    """
    from groundup.cli.main import run_verb

    show_commands(title, words)
    if is_kept:
        print("done before, and kept")
        return 0
    return run_verb(list(map(str, words)), **options)


def show_commands(title: str, *commands: list[Any]) -> None:
    """A heading, and commands as they are typed."""
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print("\n", Text(title, style="bold"), sep="")
    for words in commands:
        line = f"$ {shlex.join(['groundup', *map(str, words)])}"
        console.print(Text(line, style="green"), soft_wrap=True)
