"""Entry point of `python -m groundup`, as used with torchrun."""

import sys

from groundup.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
