"""What is refused of a command line of `groundup plan`, and why."""

from collections.abc import Sequence
from typing import TYPE_CHECKING

from groundup.cli.flags import is_on, value_of
from groundup.errors import ConfigError

if TYPE_CHECKING:
    from groundup.cli.plan import Arguments

_LENGTHS = ("--num-steps", "--tokens", "--minutes")
# What a probe finds out by itself.
_MEASURED = ("--device", "--mfu", "--peak-tflops", "--memory-gb")
_OF_MANY = ("--across-gb", "--gpus-per-machine")
_COUNTS = "batch_size num_steps tokens micro_batch_size corpus_tokens gpus gpus_per_machine".split()
# Beyond them a number was mistyped.
_RANGES = {
    "peak_tflops": (1e-6, 1e9),
    "memory_gb": (1e-3, 1e9),
    "price_per_hour": (1e-6, 1e9),
    "minutes": (1e-3, 1e9),
    "across_gb": (1e-6, 1e6),
}


def check_flags(argv: Sequence[str]) -> None:
    """Raise ConfigError for flags that contradict each other.

    argv: as typed.
    """
    lengths = [one for one in _LENGTHS if value_of(one, argv) is not None]
    if len(lengths) > 1:
        raise ConfigError(f"{' and '.join(lengths)} both say how long the run is: give one")
    guesses = [flag for flag in _MEASURED if value_of(flag, argv) is not None]
    if guesses and is_on("--probe", argv):
        raise ConfigError(f"--probe measures this machine: leave {guesses[0]} out, or plan without")
    of_many = [one for one in _OF_MANY if value_of(one, argv) is not None]
    if of_many and value_of("--gpus", argv) is None:
        raise ConfigError(f"{of_many[0]} is for a plan of many devices: add --gpus N")
    if value_of("--minutes", argv) is not None and value_of("--gpus", argv) is not None:
        raise ConfigError("--minutes is for one device: give --num-steps or --tokens with --gpus")
    name, file = value_of("--preset", argv), value_of("--config", argv)
    if name is not None and file is not None:
        raise ConfigError(f"--preset {name} and --config {file} both say what to plan: give one")


def check_values(arguments: "Arguments") -> None:
    """Raise ConfigError for a value that nobody can mean.

    arguments: as parsed.
    """

    def complain(name: str, problem: str) -> None:
        value = getattr(arguments, name)
        raise ConfigError(f"--{name.replace('_', '-')} is {value:g}, but must be {problem}")

    for name in _COUNTS:
        value = getattr(arguments, name)
        if value is not None and value < 1:
            complain(name, "at least 1")
    for name, (low, high) in _RANGES.items():
        value = getattr(arguments, name)
        if value is not None and not low <= value <= high:
            complain(name, f"from {low:g} to {high:g}" if value > 0 else "above 0")
    size = arguments.micro_batch_size
    if size is not None and arguments.batch_size % size:
        raise ConfigError(
            f"--batch-size {arguments.batch_size} cannot be cut into micro-batches of "
            f"--micro-batch-size {size}: choose a divisor of the batch size"
        )
