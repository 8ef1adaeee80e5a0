"""Execute a command that gets SIGTERM when its parent process dies: PARENT_PID COMMAND ….

Run by its path, before Python loads anything else. Only on Linux; elsewhere the command outlives
its parent, and the next sweep waits for it.
"""

import ctypes
import os
import signal
import sys

_PR_SET_PDEATHSIG = 1


def main(parent: int, command: list[str]) -> None:
    """Replace this process by the command; the parent-death signal survives execv."""
    if sys.platform.startswith("linux"):
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, int(signal.SIGTERM), 0, 0, 0)
        # The parent may have died before prctl.
        if os.getppid() != parent:
            sys.exit(128 + signal.SIGTERM)
    os.execv(command[0], command)


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2:])
