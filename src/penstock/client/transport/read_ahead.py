"""`ReadAhead`: one reader's budget of bytes read ahead of the application, over all its segments."""

from __future__ import annotations

import asyncio

from penstock.model.errors import InvalidArgumentError


class ReadAhead:
    """One budget in bytes, shared evenly by the segments that are `open`.

    A segment holds at most its share, and all together at most `bytes_max`. The one exception is an event larger than a
    share, which could never be read otherwise: one segment at a time may exceed both for the rest of that event.

    Bytes count from their receipt until they are returned as events. A reply that exceeds the free budget is truncated
    to it; the rest is requested again.
    """

    __slots__ = (
        "_crowded", "_exceeding", "_holders", "_waiting", "bytes_max", "held_bytes", "share_bytes", "share_bytes_max",
    )  # fmt: skip

    def __init__(self, bytes_max: int, share_bytes_max: int | None = None) -> None:
        if bytes_max <= 0:
            raise InvalidArgumentError(f"a reader cannot read ahead {bytes_max} bytes: give 1 or more")
        self.bytes_max: int = bytes_max
        self.share_bytes_max: int = bytes_max if share_bytes_max is None else share_bytes_max
        #: Bytes held now.
        self.held_bytes: int = 0
        self._holders: dict[object, int] = {}
        self._exceeding: object | None = None
        #: Holders that wait for their own consumer, and holders that wait for others.
        self._waiting: dict[object, asyncio.Event] = {}
        self._crowded: dict[object, asyncio.Event] = {}
        #: The current maximum per holder.
        self.share_bytes: int = min(self.bytes_max, self.share_bytes_max)

    def open(self, holder: object) -> None:
        """Add `holder`, which represents a segment, to the shares."""
        self._holders[holder] = 0
        self._share()

    def close(self, holder: object) -> None:
        """Remove the share of `holder`, and all bytes it holds."""
        self.held_bytes -= self._holders.pop(holder, 0)
        if self._exceeding is holder:
            self._exceeding = None
        self._share()
        _set_all(self._waiting)
        _set_all(self._crowded)

    def room(self, holder: object, missing_bytes: int) -> int:
        """Return how many bytes `holder` may receive now.

        `missing_bytes`: the holder has only an incomplete event, which lacks this many bytes; else 0.
        """
        held = self._holders[holder]
        room = min(self.share_bytes - held, self.bytes_max - self.held_bytes)
        if missing_bytes and held >= self.share_bytes and self._exceeding in (None, holder):
            self._exceeding = holder
            return min(missing_bytes, self.share_bytes_max)
        return max(room, 0)

    def take(self, holder: object, length: int) -> None:
        """Count `length` bytes as received."""
        self._holders[holder] += length
        self.held_bytes += length

    def give_back(self, holder: object, length: int) -> None:
        """Count `length` bytes as returned."""
        if holder not in self._holders or not length:
            return
        self._holders[holder] -= length
        self.held_bytes -= length
        if self._exceeding is holder and self._holders[holder] <= self.share_bytes:
            self._exceeding = None
        self.poke(holder)
        _set_all(self._crowded)

    def poke(self, holder: object) -> None:
        """Let `holder` check again: its consumer has taken something."""
        for waiting in (self._waiting, self._crowded):
            if (event := waiting.pop(holder, None)) is not None:
                event.set()

    def waiter(self, holder: object) -> asyncio.Event:
        """Return an event that is set once `room` is worth calling again."""
        event = asyncio.Event()
        is_full = self._holders[holder] >= self.share_bytes and self._exceeding is None
        (self._waiting if is_full else self._crowded)[holder] = event
        return event

    def _share(self) -> None:
        # Never 0: with one byte at a time there is still progress.
        self.share_bytes = max(1, min(self.bytes_max // max(len(self._holders), 1), self.share_bytes_max))


def _set_all(events: dict[object, asyncio.Event]) -> None:
    while events:
        events.popitem()[1].set()
