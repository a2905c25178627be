"""``with_parent.py PID PROGRAM ...`` runs a program that ends when process PID, which starts it, ends for any reason.

A script of its own, without imports of Penstock: it is replaced by the program at once.
"""

from __future__ import annotations

import ctypes
import os
import signal
import sys

#: Linux: the signal that a process gets when its parent dies. Kept when the process becomes another program.
_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> None:
    """Become the program. Exits with 1 if the parent has ended already."""
    if sys.platform == "linux":
        prctl = getattr(ctypes.CDLL(None), "prctl", None)
        if prctl is not None:
            prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != int(arguments[0]):
        sys.exit(1)
    os.execvp(arguments[1], arguments[1:])


if __name__ == "__main__":
    main(sys.argv[1:])
