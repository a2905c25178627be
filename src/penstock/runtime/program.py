"""`watch_program`: notifies parts of a program of a fork and of the exit.

There is one hook each, registered when this module is imported, over a set of weak references: collected objects are
not notified. Also `resident_bytes`: the memory of the process.
"""

from __future__ import annotations

import atexit
import os
import sys
import weakref
from collections.abc import Callable
from typing import Protocol


class ProgramPart(Protocol):
    """An object notified of a fork and of the exit. Neither call may raise, and neither runs in an event loop."""

    def _on_forked(self) -> None:
        """Called in the child of `os.fork`, in its only thread: threads, loops and sockets are the parent's."""

    def _on_exit(self) -> None:
        """Called when the interpreter is about to exit. Background threads still run; a bounded wait is allowed."""


#: The type of `watch_program`. None where there is no process, as in a simulation.
WatchProgram = Callable[[ProgramPart], None]

#: Above the priorities that `multiprocessing` itself uses, of which 15 is the highest.
_EXIT_PRIORITY = 100

#: Number of forks between this process and the one that imported this module.
_fork_count = 0
#: The fork count of the process that first used each library.
_first_used: dict[str, int] = {}

_parts: weakref.WeakSet[ProgramPart] = weakref.WeakSet()


def watch_program(part: ProgramPart) -> None:
    """Call `part` at a fork and at the exit. It is held weakly."""
    _parts.add(part)
    _watch_exit_of_child()


def survives_here(library: str) -> bool:
    """Record a use of `library`, which does not survive a fork. False: a parent process has used it before."""
    return _first_used.setdefault(library, _fork_count) == _fork_count


def resident_bytes() -> int:
    """Return the resident memory of this process in bytes; 0 on systems other than Linux."""
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


#: The pid of the `multiprocessing` child for which the exit hook is registered; 0: none.
_watched_child_pid = 0


def _watch_exit_of_child() -> None:
    """Register `_exiting` for the exit of a `multiprocessing` child, which does not call `atexit` functions.

    The child drops its parent's registrations, so each child registers for itself.
    """
    global _watched_child_pid
    process = sys.modules.get("multiprocessing.process")
    if process is None or process.parent_process() is None or _watched_child_pid == os.getpid():
        return
    _watched_child_pid = os.getpid()
    from multiprocessing.util import Finalize

    # Called before queues and pools are closed.
    Finalize(None, _exiting, exitpriority=_EXIT_PRIORITY)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_forked)
atexit.register(_exiting)
