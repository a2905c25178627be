"""`KnownEnds`: which positions in segments are known to exist, so that no read waits at one that does not.

A segment store holds a read beyond the end of a segment until the segment has grown past it. That is right at the end,
and wrong behind it: what is read was acknowledged, so it is durable, and a segment that ends before a position that was
read has lost data, as after a restore from an older backup. A read that waits there would go on inside an event, once
enough other events are stored.

So before a read at a position that nothing on its connection has shown to exist, the client asks for the end of the
segment on that connection. A server that was restored has new connections. A reader that goes on where it is asks once
for each segment and connection.
"""

from __future__ import annotations

from collections import OrderedDict
from typing import Final
from weakref import WeakKeyDictionary

from penstock.wire.connection import WireConnection

#: Of so many segments the known ends are kept for each connection. Others, the longest unread, are asked for again.
SEGMENTS_MAX: Final = 65_536


class KnownEnds:
    """For each connection that is alive, how far segments are known to reach, in bytes."""

    def __init__(self) -> None:
        self._ends: WeakKeyDictionary[WireConnection, OrderedDict[str, int]] = WeakKeyDictionary()

    def reaches(self, connection: WireConnection, segment: str, position: int) -> bool:
        """Say whether `position` is known to be in the segment, or at its end."""
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
