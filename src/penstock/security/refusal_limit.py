"""`RefusalLimit`: lets one refusal per second of each address and account into the audit log.

So failing attempts do not push changes out of the log. Further refusals are counted, and the next recorded one
reports their number.
"""

from __future__ import annotations

from collections import OrderedDict

#: Least time between two recorded refusals of one address and account, and how many of these are remembered.
_INTERVAL_MS = 1000
_CALLERS_MAX = 1024


class RefusalLimit:
    """See the module."""

    def __init__(self) -> None:
        #: By address and account, oldest first: time of the last recorded refusal, and the number left out since.
        self._callers: OrderedDict[tuple[str, str], tuple[int, int]] = OrderedDict()

    def left_out_before(self, address: str, principal: str, now_ms: int) -> int | None:
        """Return how many refusals were left out before this one; None: this one is left out, too.

        `address`: of the caller's host, without its port. `now_ms`: the Unix time.
        """
        key = (address, principal)
        last_ms, count = self._callers.pop(key, (now_ms - _INTERVAL_MS, 0))
        # A clock that was set back leaves nothing out.
        is_left_out = 0 <= now_ms - last_ms < _INTERVAL_MS
        self._callers[key] = (last_ms, count + 1) if is_left_out else (now_ms, 0)
        if len(self._callers) > _CALLERS_MAX:
            self._callers.popitem(last=False)
        return None if is_left_out else count


def with_left_out(detail: str, left_out: int) -> str:
    """Return the text of a refusal with the number of those that were left out before it."""
    return f"{detail} ({left_out} more were left out before)" if left_out else detail
