"""``python -m penstock.testing``: prints where the simulation is; exits with 2."""

from __future__ import annotations

import sys

_TEXT = """\
python -m penstock.testing: this package has fixtures for tests of applications, and no commands.
The simulation of Penstock is in Penstock's repository, in simulation/, and is not installed.
In a checkout run ./run seeds --help, or python -m penstock_simulation --help.
"""

if __name__ == "__main__":
    sys.stderr.write(_TEXT)
    sys.exit(2)
