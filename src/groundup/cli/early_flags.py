"""Flags that decide what all others start from, read before the command line is parsed."""

from collections.abc import Sequence


def is_on(switch: str, argv: Sequence[str]) -> bool:
    """Whether a switch is set, in any spelling: alone, `--no-switch`, or with true or false."""
    is_set = False
    for place, word in enumerate(argv):
        name, is_joined, value = word.replace("_", "-").partition("=")
        if name == f"--no-{switch.removeprefix('--')}":
            is_set = False
        elif name == switch:
            value = value if is_joined else " ".join(argv[place + 1 : place + 2])
            is_set = value.lower() != "false"
    return is_set


def value_of(flag: str, argv: Sequence[str]) -> str | None:
    """The last value given to a flag, as `--flag value` or `--flag=value`."""
    found = None
    for place, word in enumerate(argv):
        name, is_joined, value = word.partition("=")
        if name.replace("_", "-") == flag:
            found = value if is_joined else next(iter(argv[place + 1 : place + 2]), None)
    return found
