"""`python -m groundup` is `groundup`; torchrun and friends start it this way."""

import sys

from groundup.cli.main import main

if __name__ == "__main__":
    sys.exit(main())
