"""`groundup verify-resume`: prove on this machine that a resume is exact."""

from pydantic import Field

from groundup.cli.arguments import Positional
from groundup.config import MAX_STEPS, Settings


class Arguments(Settings):
    """Prove that a killed and resumed run equals an uninterrupted one, bit for bit.

    Trains a few steps twice in a scratch folder, once with a kill; the run itself is not changed.
    """

    run: Positional[str]
    """The run whose settings and data are used: its folder, or its name in runs/."""

    num_steps: int = Field(default=8, ge=2, le=MAX_STEPS)
    """Number of steps; the kill comes halfway."""


def run(arguments: Arguments) -> int:
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
