"""A process that leads a session, and all that it and its children have started there: to be held and killed together.

A driver of Spark has a JVM, which has a daemon for Python's workers, which makes a process group of its own: so it is
the session that tells who belongs. Sessions are seen on Linux; elsewhere signals reach the leader's group alone, and
the others end when they find it gone.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from penstock.quickstart.errors import ProcessTreeError

#: How long signals may take to be seen at work.
SIGNAL_TIMEOUT_S = 20.0
_POLL_S = 0.002
_PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Member:
    """A process: its id, its parent's, its state as Linux has it (`T` is held), its command line."""

    pid: int
    parent: int
    state: str
    command: str

    @property
    def is_worker(self) -> bool:
        """Whether it runs Python for Spark. The daemon that forks these is none: its parent is the JVM."""
        return "pyspark.daemon" in self.command


def members(leader: int) -> list[Member]:
    """Return the living processes of the session that `leader` leads, or led; empty if unknown."""
    found = []
    for path in _PROC.glob("[0-9]*"):
        try:
            # Behind the name, which may hold anything: state, parent, group, session.
            state, parent, _, session = (path / "stat").read_text().rpartition(")")[2].split()[:4]
            if int(session) == leader and state not in "ZX":
                command = (path / "cmdline").read_text(errors="replace").replace("\0", " ")
                found.append(Member(int(path.name), int(parent), state, command))
        except (OSError, ValueError):
            continue  # It has ended meanwhile.
    return found


def workers(leader: int) -> list[Member]:
    """Return the processes that run Python for Spark, without the daemon that they are forked from."""
    family = members(leader)
    daemons = {each.pid for each in family if each.is_worker}
    return [each for each in family if each.is_worker and each.parent in daemons]


def hold(leader: int) -> None:
    """Stop all of them (SIGSTOP). Raises `ProcessTreeError`; they may be held in part then."""
    _signal_until(leader, signal.SIGSTOP, _is_held)


def resume(leader: int) -> None:
    """Continue stopped processes."""
    for pid in [*(each.pid for each in members(leader)), -leader]:
        _send(pid, signal.SIGCONT)


def kill(leader: int) -> int:
    """Kill all of them, held or not; return how many there were at first. Raises `ProcessTreeError`.

    The leader is the caller's child, and a zombie until the caller has waited for it.
    """
    count = len(members(leader))
    _signal_until(leader, signal.SIGKILL, lambda each, family: False)
    return count


def _is_held(each: Member, family: list[Member]) -> bool:
    """Whether no thread of a process runs.

    One that is just starting a program waits in the kernel until its child has done so, which a held one does not.
    """
    held = "TtD" if any(other.parent == each.pid and other.state in "Tt" for other in family) else "Tt"
    for path in (_PROC / str(each.pid) / "task").glob("*/stat"):
        try:
            if path.read_text().rpartition(")")[2].split()[0] not in held:
                return False
        except OSError:
            continue  # The thread has ended meanwhile.
    return True


def _signal_until(leader: int, number: signal.Signals, is_obeyed: Callable[[Member, list[Member]], bool]) -> None:
    """Send a signal until all obey: one that was just being forked when others got it is found the next time."""
    deadline_s = time.monotonic() + SIGNAL_TIMEOUT_S
    _send(-leader, number)
    while True:
        family = members(leader)
        left = [each.pid for each in family if not is_obeyed(each, family)]
        if not left:
            return
        for pid in left:
            _send(pid, number)
        if time.monotonic() > deadline_s:
            raise ProcessTreeError(f"processes {left} did not end on {number.name} within {SIGNAL_TIMEOUT_S:g} s")
        time.sleep(_POLL_S)


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        pass  # It has ended: nothing is left to be done to it.
