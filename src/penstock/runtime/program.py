"""`watch_program`: tells what a program made of the two moments that nobody calls for: a fork, and the exit.

One hook each, registered when this module is imported, over a set of weak references: what is gone is not told. Also
`resident_bytes`: what the program takes.
"""

from __future__ import annotations

import atexit
import os
import weakref
from collections.abc import Callable
from typing import Protocol


class ProgramPart(Protocol):
    """What wants to be told. Neither call may raise, and neither runs in an event loop."""

    def _on_forked(self) -> None:
        """Called in the child of `os.fork`, in its only thread: threads, loops and sockets are the parent's."""

    def _on_exit(self) -> None:
        """Called when the interpreter is about to end. Background threads still run; it may wait, for a limit."""


#: How a part makes itself known. None where no process is behind it, as in a simulation.
WatchProgram = Callable[[ProgramPart], None]

#: How many forks lie between this process and the one that imported this module.
_fork_count = 0
#: What was used first in a process of which fork count.
_first_used: dict[str, int] = {}

_parts: weakref.WeakSet[ProgramPart] = weakref.WeakSet()


def watch_program(part: ProgramPart) -> None:
    """Tell `part` of a fork and of the exit, for as long as somebody else holds it."""
    _parts.add(part)


def survives_here(library: str) -> bool:
    """Note that `library` is used now, which does not survive a fork. False: a parent process has used it before."""
    return _first_used.setdefault(library, _fork_count) == _fork_count


def resident_bytes() -> int:
    """Return the memory that this process takes now, in bytes; 0 where the system does not say (other than Linux)."""
    try:
        with open("/proc/self/statm", "rb") as counts:
            return int(counts.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:
        return 0


def _forked() -> None:
    global _fork_count
    _fork_count += 1
    for part in list(_parts):
        part._on_forked()


def _exiting() -> None:
    for part in list(_parts):
        part._on_exit()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
atexit.register(_exiting)
