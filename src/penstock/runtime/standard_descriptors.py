"""The three standard descriptors of a process that was started without some of them.

A process may be started with standard input, output or error closed (``<&-``, some schedulers and daemons). The next
file or socket then gets the free number: the event loop's library aborts, and printed text goes into a data file.
"""

from __future__ import annotations

import os
import sys

_MODES = (os.O_RDONLY, os.O_WRONLY, os.O_WRONLY)


def open_standard_descriptors() -> None:
    """Open ``/dev/null`` as each standard descriptor that is closed. Call it before any file is opened."""
    for descriptor, mode in enumerate(_MODES):
        try:
            os.fstat(descriptor)
        except OSError:
            # `open` returns the lowest free number, and all lower ones are open by now.
            opened = os.open(os.devnull, mode)
            os.set_inheritable(opened, True)


def open_standard_files() -> None:
    """Call `open_standard_descriptors`, and set Python's standard files to these descriptors where they are None."""
    open_standard_descriptors()
    # They live as long as the process.
    if sys.stdin is None:
        sys.stdin = os.fdopen(0, encoding="utf-8", closefd=False)
    if sys.stdout is None:
        sys.stdout = os.fdopen(1, "w", encoding="utf-8", closefd=False)
    if sys.stderr is None:
        sys.stderr = os.fdopen(2, "w", encoding="utf-8", closefd=False)
