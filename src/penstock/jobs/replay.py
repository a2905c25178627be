"""`ReplaySource`: a range of a stream, as the source of a copy into another stream.

Events do not contain their routing keys. Unless keys are taken from a field, the segment's number is the key of each
event: events that were ordered in a segment are ordered in the other stream, too.
"""

from __future__ import annotations

import json
from dataclasses import dataclass

from penstock.jobs.errors import StreamRecreatedError
from penstock.jobs.export import ExportSource
from penstock.jobs.identities import checked_after_failure
from penstock.jobs.keys import EventKeys
from penstock.jobs.ledgered_copy import Portion
from penstock.model.errors import CorruptionError
from penstock.model.stream_cuts import StreamCut
from penstock.spark.batches import RangeProgress, record_batches
from penstock.spark.planner import advance, ranges_between


@dataclass(frozen=True, slots=True)
class ReplayPlan:
    """The range of a replay, fixed when it first begins.

    Attributes:
        wanted: the range as given by the user, which may resolve to another cut each time.
        key_field: field of the routing key; None: the segment.
        identity: of the source stream; None: unknown, as in plans of earlier versions.
    """

    wanted: str
    start: StreamCut
    end: StreamCut
    key_field: str | None
    identity: str | None = None

    def to_text(self) -> str:
        """Return it as one line of JSON."""
        fields: dict[str, object] = {
            "wanted": self.wanted, "start": self.start.to_text(), "end": self.end.to_text(),
            "key_field": self.key_field,
        }  # fmt: skip
        if self.identity is not None:
            fields["identity"] = self.identity
        return json.dumps(fields, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str) -> ReplayPlan:
        """Decode the output of `to_text`. Raises `CorruptionError`."""
        try:
            fields = json.loads(text)
            field, identity = fields["key_field"], fields.get("identity")
            start, end = StreamCut.from_text(fields["start"]), StreamCut.from_text(fields["end"])
            return cls(
                str(fields["wanted"]), start, end, None if field is None else str(field),
                None if identity is None else str(identity),
            )  # fmt: skip
        except (ValueError, KeyError, TypeError) as error:
            raise CorruptionError("the ledger", 0, f"not a plan of a replay: {text!r}") from error


class ReplaySource:
    """See the module. Implements `PortionSource`; a position is the text of a stream cut.

    Args:
        bytes_max, events_max: limits of a portion, which is held in memory.
    """

    def __init__(
        self, source: ExportSource, plan: ReplayPlan, *, bytes_max: int, events_max: int | None = None
    ) -> None:
        self.plan: str = plan.to_text()
        self._source = source
        self._planned = plan
        self._bytes_max = bytes_max
        self._events_max = events_max
        self._keys = None if plan.key_field is None else EventKeys(plan.key_field)

    def left_bytes(self) -> int:
        """Return the length of the whole range in bytes. Raises `StreamRecreatedError`."""
        self._check_identity()
        return sum(each.length for each in ranges_between(self._source, self._begin(None), self._end()))

    def portion(self, position: str | None) -> Portion | None:
        """See `PortionSource.portion`. Raises `StreamRecreatedError`: the source is another stream now."""

        self._check_identity()
        with checked_after_failure(self._check_identity):
            return self._read(position)

    def _read(self, position: str | None) -> Portion | None:
        import pyarrow as pa

        source, start = self._source, self._begin(position)
        cut = advance(source, start, self._end(), self._bytes_max, events_max=self._events_max)
        events: list[pa.Array] = []
        keys: list[pa.Array] = []
        ranges = ranges_between(source, start, cut)
        for each in ranges:
            name = source.segment_name(each.segment)
            batches = record_batches(
                source.read(each.segment, each.start, each.end), scope=source.scope, stream=source.stream,
                segment=each.segment, segment_name=name, place=RangeProgress(each.start), columns=("event",),
            )  # fmt: skip
            for batch in batches:
                column = batch.column(0)
                events.append(column)
                if self._keys is None:
                    keys.append(pa.repeat(pa.scalar(str(each.segment)), len(column)))
                else:
                    where = f"{name} from byte {each.start} on"
                    keys.append(pa.array(self._keys.keys_of(column.to_pylist(), where), pa.string()))
        if not events:
            return None
        # Checked again: identities are never reused, so everything read belongs to the stream of the plan.
        self._check_identity()
        behind = StreamCut(source.scope, source.stream, cut)
        length = sum(each.length for each in ranges)
        return Portion(pa.concat_arrays(events), pa.concat_arrays(keys), behind.to_text(), length)

    def _check_identity(self) -> None:
        found, expected = self._source.identity(), self._planned.identity
        if None not in (found, expected) and found != expected:
            raise StreamRecreatedError(
                f"this replay started to read {self._source.name}, but that stream was deleted, and another stream has "
                f"its name now (identity {found} instead of {expected}): replay that stream under another job name"
            )

    def _begin(self, position: str | None) -> dict[int, int]:
        return _reached(self._planned.start if position is None else StreamCut.from_text(position))

    def _end(self) -> dict[int, int]:
        return _reached(self._planned.end)


def _reached(cut: StreamCut) -> dict[int, int]:
    return {segment: offset for segment, offset in cut.positions.items() if offset >= 0}
