"""`watch_program`: tells what a program made of the two moments that nobody calls for: a fork, and the exit.

One hook each, registered when this module is imported, over a set of weak references: what is gone is not told. Also
`resident_bytes`: what the program takes.
"""

from __future__ import annotations

import atexit
import os
import sys
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

#: Above the priorities that `multiprocessing` uses itself, whose highest is 15.
_EXIT_PRIORITY = 100

#: How many forks lie between this process and the one that imported this module.
_fork_count = 0
#: What was used first in a process of which fork count.
_first_used: dict[str, int] = {}

_parts: weakref.WeakSet[ProgramPart] = weakref.WeakSet()


def watch_program(part: ProgramPart) -> None:
    """Call `part` at a fork and at the exit. It is held weakly."""
    _parts.add(part)
    _watch_exit_of_child()


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


#: The child process of `multiprocessing` whose exit is watched; 0: none.
_watched_child_pid = 0


def _watch_exit_of_child() -> None:
    """Have `_exiting` called at the end of a child process of `multiprocessing`: `atexit` is not called in a fork.

    The child drops what its parent had registered there, so each child registers for itself.
    """
    global _watched_child_pid
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None or _watched_child_pid == os.getpid():
        return
    _watched_child_pid = os.getpid()
    from multiprocessing.util import Finalize

    # Called before queues and pools are ended.
    Finalize(None, _exiting, exitpriority=_EXIT_PRIORITY)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
atexit.register(_exiting)
