"""`Impairment`: whether a segment store is impaired: it runs, and others should serve its containers. Pure.

Two reasons. *Its log does not answer*: an append or a check waits for `impaired_after_s`; it ends when the log has
answered for `recovered_after_s`. *It lacks resources*: `own_failures_max` containers failed within
`own_failures_window_s` for lack of memory, descriptors or threads; it ends `own_failures_rest_s` after the last one.

Time in which the process did not run does not count: a store that was stopped for a minute finds old appends waiting,
and its log may be well.
"""

from __future__ import annotations

from collections import deque

from penstock.segmentstore.cluster.settings import MemberSettings

#: An observation counts for at most this many intervals.
_INTERVALS_MAX = 2


class Impairment:
    """See the module. Call `note` every `check_s`.

    Attributes:
        reason: why the store is impaired, for people; empty: it is not.
        is_log_silent: whether the log is a reason, and does not answer now.
    """

    def __init__(self, settings: MemberSettings) -> None:
        self.reason: str = ""
        self.is_log_silent: bool = False
        self._settings = settings
        self._seen_s: float | None = None
        self._problem_s = 0.0
        #: Time for which the present problem of the log, or its absence, was observed.
        self._bad_s = 0.0
        self._good_s = 0.0
        self._is_log_bad = False
        self._failure_count = 0
        self._failures_s: deque[float] = deque(maxlen=settings.own_failures_max)
        self._is_lacking = False

    def note(self, now_s: float, *, log_problem_s: float, own_failures: int) -> None:
        """Note what was found. `log_problem_s`: for how long the log has not answered; 0: it has.

        `own_failures`: the count since the start of the process.
        """
        elapsed_s = 0.0 if self._seen_s is None else now_s - self._seen_s
        self._seen_s = now_s
        self._note_log(min(elapsed_s, _INTERVALS_MAX * self._settings.check_s), log_problem_s)
        self._note_failures(now_s, own_failures)
        self.is_log_silent = self._is_log_bad and self._good_s == 0.0
        parts = []
        if self._is_log_bad:
            parts.append(f"its log has not answered for {log_problem_s:.0f} s" if log_problem_s else "its log recovers")
        if self._is_lacking:
            parts.append("containers fail for lack of memory, descriptors or threads")
        self.reason = " and ".join(parts)

    def _note_log(self, elapsed_s: float, log_problem_s: float) -> None:
        settings = self._settings
        # An age that falls belongs to a later request: the log has answered in between.
        continues = 0.0 < self._problem_s <= log_problem_s
        self._problem_s = log_problem_s
        self._bad_s = self._bad_s + elapsed_s if continues else 0.0
        # Appends that are answered within half of the bound are slow, and no problem.
        self._good_s = self._good_s + elapsed_s if log_problem_s <= settings.impaired_after_s / 2 else 0.0
        if min(self._bad_s, log_problem_s) >= settings.impaired_after_s:
            self._is_log_bad = True
        elif self._good_s >= settings.recovered_after_s:
            self._is_log_bad = False

    def _note_failures(self, now_s: float, own_failures: int) -> None:
        settings = self._settings
        for _ in range(min(own_failures - self._failure_count, settings.own_failures_max)):
            self._failures_s.append(now_s)
        self._failure_count = own_failures
        if not self._failures_s:
            return
        is_full = len(self._failures_s) == settings.own_failures_max
        if is_full and self._failures_s[-1] - self._failures_s[0] <= settings.own_failures_window_s:
            self._is_lacking = now_s - self._failures_s[-1] < settings.own_failures_rest_s
        elif now_s - self._failures_s[-1] >= settings.own_failures_rest_s:
            self._is_lacking = False
