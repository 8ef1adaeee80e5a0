"""Becomes another command, which the system asks to stop when the process that started it dies.

Run by its path, before Python has loaded anything else: PARENT_PID COMMAND …. Only Linux can do
it; elsewhere the command outlives its parent, and whoever starts it again waits for it.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    """Replace this process by the command; the request to the system outlasts that."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        # It may have died before the system was told.
        if os.getppid() != parent:
            sys.exit(128 + signal.SIGTERM)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
