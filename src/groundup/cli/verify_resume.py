"""`groundup verify-resume`: the proof, on this machine, that a stopped run loses nothing."""

from pydantic import Field

from groundup.cli.arguments import Positional
from groundup.config import MAX_STEPS, Settings


class Arguments(Settings):
    """Prove that a run which is killed and resumed equals one that was not, to the bit.

    A few steps are trained twice in a scratch folder, once with a kill; the run is left alone.
    """

    run: Positional[str]
    """The run whose settings and data to use: its folder, or its name under runs."""

    num_steps: int = Field(default=8, ge=2, le=MAX_STEPS)
    """How many steps to train; the kill comes in the middle."""


def run(arguments: Arguments) -> int:
    """Train, compare, print one line; 1 if the runs differ."""
    from groundup.cli.shared import find_run
    from groundup.training import verify_resume

    found = verify_resume(find_run(arguments.run), arguments.num_steps)
    if found.differences:
        print(
            f"Not exact: {len(found.differences)} differences, the first: {found.differences[0]}; "
            f"on CUDA set deterministic to true for equality"
        )
        return 1
    print(
        f"Exact: {arguments.num_steps} steps with a kill are identical to uninterrupted ones in "
        f"all {found.num_records} records and {found.num_values} values and tensors"
    )
    return 0
