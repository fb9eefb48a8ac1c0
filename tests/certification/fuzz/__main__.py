"""`python -m tests.certification.fuzz --modules 10000 --seed 0 --minutes 30`."""

import sys

from tests.certification.fuzz.runs import main

if __name__ == "__main__":
    sys.exit(main())
