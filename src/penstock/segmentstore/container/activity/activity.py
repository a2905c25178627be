"""`Activity`: records which segments of a container receive data, and how much; sampled periodically.

An append only records its segment, once per interval, and a border every so many bytes. Statistics and offset indexes
are computed from these notes in the background, so that appends pay almost nothing for them.
"""

from __future__ import annotations

from penstock.segmentstore.container.segment import Segment

#: Offset after an append, number of events before it, milliseconds since the epoch.
Border = tuple[int, int, int]


#: Transactions with shorter lives count as if their events arrived when they were merged.
_SPREAD_LIFE_S_MIN = 5.0


class Touched:
    """A segment that received data in this interval; `length` and `event_count` are the values before it.

    Of these, `merged_events` and `merged_bytes` came from transactions; `merged_life_s` is the longest of their lives.

    Invariant: `borders` are ascending, and the last one is at `marked` if there are any.
    """

    __slots__ = (
        "borders", "event_count", "length", "marked", "merged_bytes", "merged_events", "merged_life_s", "segment",
    )  # fmt: skip

    def __init__(self, segment: Segment) -> None:
        self.segment: Segment = segment
        self.length: int = segment.length
        self.event_count: int = segment.event_count
        self.marked: int = segment.length
        self.borders: list[Border] = []
        self.merged_events: int = 0
        self.merged_bytes: int = 0
        self.merged_life_s: float = 0.0

    def merge(self, events: int, byte_count: int, life_s: float) -> None:
        """Record the events and bytes of a merged transaction of this age."""
        if life_s >= _SPREAD_LIFE_S_MIN:
            self.merged_events += events
            self.merged_bytes += byte_count
            self.merged_life_s = max(self.merged_life_s, life_s)


class Activity:
    """Activity since the last `take`. Borders are recorded at least `border_bytes` apart; 0: none.

    Bounded per interval: one note per active, created or ended segment, and one border per `border_bytes`.
    """

    __slots__ = ("_border_bytes", "_created", "_ended", "_touched")

    def __init__(self, border_bytes: int) -> None:
        self._border_bytes = border_bytes or (1 << 62)
        self._touched: dict[int, Touched] = {}
        self._created: list[tuple[int, str]] = []
        self._ended: list[int] = []

    def created(self, segment: Segment) -> None:
        """Record the creation of a segment whose load must be reported even if it receives no data."""
        self._created.append((segment.id, segment.name))

    def take_created(self) -> list[tuple[int, str]]:
        """Return ids and names of the segments created since the last call."""
        created, self._created = self._created, []
        return created

    def ended(self, segment: Segment) -> None:
        """Record that a segment was sealed or deleted: it receives no more data, whenever its last data arrived."""
        self._ended.append(segment.id)

    def take_ended(self) -> list[int]:
        """Return the ids of the segments sealed or deleted since the last call."""
        ended, self._ended = self._ended, []
        return ended

    def before(self, segment: Segment) -> Touched:
        """Record that `segment` is about to receive data."""
        touched = self._touched.get(segment.id)
        if touched is None:
            touched = self._touched[segment.id] = Touched(segment)
        elif touched.segment is not segment:
            touched.segment = segment  # It left memory and returned since; its counts continue.
        return touched

    def behind(self, touched: Touched) -> None:
        """Record a border after the new data, if the last border is far enough away."""
        segment = touched.segment
        if segment.length - touched.marked >= self._border_bytes:
            touched.marked = segment.length
            touched.borders.append((segment.length, segment.event_count, segment.last_modified_ms))

    def take(self) -> list[Touched]:
        """Return the notes and start new ones."""
        touched, self._touched = self._touched, {}
        return list(touched.values())
