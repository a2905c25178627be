"""`KnownEnds`: the positions in segments that are known to exist, so that no read waits at one that does not.

A segment store holds a read beyond the end of a segment until the segment has grown past it. That is right at the end,
and wrong after it: data that was read was acknowledged and hence durable, so a segment that ends before a position that
was read has lost data, as after a restore from an older backup. A read that waits there would resume inside an event,
once enough other events are stored.

So before a read at a position that is not known to exist on its connection, the client requests the end of the segment
on that connection. A server that was restored has new connections. A reader that reads sequentially sends one such
request for each segment and connection.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final
from weakref import WeakKeyDictionary

from penstock.wire.connection import WireConnection

#: Known ends are kept for this many segments per connection. For others, the least recently read, they are requested
#: again.
SEGMENTS_MAX: Final = 65_536


class KnownEnds:
    """For each live connection, how far segments are known to reach, in bytes."""

    def __init__(self) -> None:
        self._ends: WeakKeyDictionary[WireConnection, OrderedDict[str, int]] = WeakKeyDictionary()

    def reaches(self, connection: WireConnection, segment: str, position: int) -> bool:
        """Return whether `position` is known to be in the segment, or at its end."""
        if not position:
            return True
        ends = self._ends.get(connection)
        return ends is not None and ends.get(segment, 0) >= position

    def note(self, connection: WireConnection, segment: str, end: int) -> None:
        """Note that the segment reaches to `end` at least."""
        ends = self._ends.get(connection)
        if ends is None:
            ends = self._ends[connection] = OrderedDict()
        ends[segment] = max(end, ends.get(segment, 0))
        ends.move_to_end(segment)
        if len(ends) > SEGMENTS_MAX:
            ends.popitem(last=False)
