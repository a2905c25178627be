"""`HeldJob`: a blocking function that can be paused at one of its disk calls while other code runs.

The function runs in a thread, but never concurrently with other code: it runs while `advance` is blocked, until it
pauses or ends. So it is as repeatable as the rest of the simulation. Most blocking work runs atomically at one instant
(see `work`); this is for work that is split in two, or hangs.
"""

from __future__ import annotations

import contextvars
import threading
from collections.abc import Callable

from penstock_simulation.simulated.errors import ProcessKilled

#: The held job whose function is running, if any.
HELD_JOB: contextvars.ContextVar[HeldJob | None] = contextvars.ContextVar("penstock_held_job", default=None)

#: Called before each disk call; returns until when the job has to wait there; None: continue.
WaitAt = Callable[[str, str], "float | None"]


class HeldJob:
    """One function in progress. `wait_at` is called before each of its disk calls.

    Attributes:
            until_s: when to resume, on the loop's clock, while it is paused.
            request: an action for the loop to run before the function resumes, if it must not run in the thread.
            is_over: it has ended, with `result` or with `error`.
    """

    def __init__(self, function: Callable[[], object], context: contextvars.Context, wait_at: WaitAt) -> None:
        self.until_s: float = 0.0
        self.request: Callable[[], None] | None = None
        self.is_over: bool = False
        self.result: object = None
        self.error: BaseException | None = None
        self._function = function
        self._context = context.copy()
        self._wait_at = wait_at
        self._is_abandoned = False
        self._goes = threading.Semaphore(0)
        self._stands = threading.Semaphore(0)
        self._thread: threading.Thread | None = None

    def advance(self) -> None:
        """Run the function until it pauses or ends. Called by the loop."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="penstock-held-job", daemon=True)
            self._thread.start()
        self._goes.release()
        self._stands.acquire()

    def abandon(self) -> None:
        """Unwind the function at its pause, because its process is dead. Called by the loop."""
        self._is_abandoned = True
        if self._thread is not None:
            while not self.is_over:
                self.advance()

    def at_disk_call(self, call: str, path: str) -> None:
        """Pause while `wait_at` returns a time. Called by the function. Raises `ProcessKilled`."""
        while (until_s := self._wait_at(call, path)) is not None:
            self.until_s = until_s
            self._hold()

    def ask_loop(self, request: Callable[[], None]) -> None:
        """Have the loop run an action, then resume. Called by the function. Raises `ProcessKilled`."""
        self.request = request
        self._hold()

    def _hold(self) -> None:
        self._stands.release()
        self._goes.acquire()
        if self._is_abandoned:
            raise ProcessKilled("the process died while its work was held")

    def _run(self) -> None:
        self._goes.acquire()
        try:
            self.result = self._context.run(self._call)
        except BaseException as error:  # noqa: BLE001  # is raised where the job is awaited, as from a real pool
            self.error = error
        self.is_over = True
        self._stands.release()

    def _call(self) -> object:
        if self._is_abandoned:
            raise ProcessKilled("the process died before its work began")
        HELD_JOB.set(self)
        return self._function()
