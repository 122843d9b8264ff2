"""`python -m flows ...` is `seqscale run ...`."""

import sys

from flows.cli import main

if __name__ == "__main__":
    sys.argv.insert(1, "run")
    main()
