"""`Activity`: which segments of a container get data, and how much, looked at now and again.

An append only notes its segment, once between two looks, and every so many bytes the border behind it: statistics and
offset indexes are made from these notes in the background, so that appends pay next to nothing for them.
"""

from __future__ import annotations

from penstock.segmentstore.container.segment import Segment

#: Offset behind an append, events before it, milliseconds since the epoch.
Border = tuple[int, int, int]


#: Transactions that lived for less count as if their events came when they were merged.
_SPREAD_LIFE_S_MIN = 5.0


class Touched:
    """A segment that got data since the last look; `length` and `event_count` are those from before.

    Of that, `merged_events` and `merged_bytes` came with transactions over `merged_life_s`, the longest of their lives.

    Invariant: `borders` grow, and the last one is at `marked` if there are any.
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
        """Note that a transaction of this age has brought so much."""
        if life_s >= _SPREAD_LIFE_S_MIN:
            self.merged_events += events
            self.merged_bytes += byte_count
            self.merged_life_s = max(self.merged_life_s, life_s)


class Activity:
    """What has got data since the last look. Borders are noted at least `border_bytes` apart; 0: none.

    Bounded: one note per active segment, per created one and per one that ended, and one border per `border_bytes`,
    between two looks.
    """

    __slots__ = ("_border_bytes", "_created", "_ended", "_touched")

    def __init__(self, border_bytes: int) -> None:
        self._border_bytes = border_bytes or (1 << 62)
        self._touched: dict[int, Touched] = {}
        self._created: list[tuple[int, str]] = []
        self._ended: list[int] = []

    def created(self, segment: Segment) -> None:
        """Note that a segment has begun whose load somebody wants to know, also if it gets nothing."""
        self._created.append((segment.id, segment.name))

    def take_created(self) -> list[tuple[int, str]]:
        """Return ids and names of what was created since the last look."""
        created, self._created = self._created, []
        return created

    def ended(self, segment: Segment) -> None:
        """Note that a segment was sealed or deleted: it gets nothing more, whenever it got something last."""
        self._ended.append(segment.id)

    def take_ended(self) -> list[int]:
        """Return the ids of what was sealed or deleted since the last look."""
        ended, self._ended = self._ended, []
        return ended

    def before(self, segment: Segment) -> Touched:
        """Note that `segment` is about to get data."""
        touched = self._touched.get(segment.id)
        if touched is None:
            touched = self._touched[segment.id] = Touched(segment)
        elif touched.segment is not segment:
            touched.segment = segment  # It left memory and came back since: it goes on where it was.
        return touched

    def behind(self, touched: Touched) -> None:
        """Note the border behind what it got, if the last one is far enough away."""
        segment = touched.segment
        if segment.length - touched.marked >= self._border_bytes:
            touched.marked = segment.length
            touched.borders.append((segment.length, segment.event_count, segment.last_modified_ms))

    def take(self) -> list[Touched]:
        """Return the notes and begin new ones."""
        touched, self._touched = self._touched, {}
        return list(touched.values())
