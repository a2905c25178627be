"""Reading the results back, and the books: is every flight in exactly one result?"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from penstock.quickstart.errors import AccountingError

if TYPE_CHECKING:
    import pyarrow as pa

RESULT_COLUMNS = ("hour", "carrier", "flights", "departed", "delay_minutes", "delay_minutes_max", "local_hour")
KEY_COLUMNS = ("hour", "carrier")
#: Differences that an error message lists.
SHOWN_DIFFERENCE_COUNT_MAX = 5


@dataclass(frozen=True, slots=True)
class Results:
    """Results of the query, each window of a carrier once.

    Attributes:
        table: columns `RESULT_COLUMNS`; `hour` is the window's start in UTC as text.
        repeated_count: results that were in the stream again, equal to the first.
    """

    table: pa.Table
    repeated_count: int

    @property
    def flight_count(self) -> int:
        """The sum of the results' counts."""
        import pyarrow.compute as pc

        return int(pc.sum(self.table["flights"]).as_py() or 0)


def parse_results(events: pa.BinaryArray | pa.ChunkedArray) -> Results:
    """Parse result events and count repetitions, of which a sink that writes exactly once leaves none.

    Raises:
        AccountingError: two results for one window of a carrier that differ.
    """
    import pyarrow as pa
    from pyarrow import json

    schema = pa.schema([(name, pa.string() if name in KEY_COLUMNS else pa.int64()) for name in RESULT_COLUMNS])
    if not len(events):
        return Results(schema.empty_table(), 0)
    text = b"\n".join(events.to_pylist())
    everything = json.read_json(
        pa.BufferReader(text),
        parse_options=json.ParseOptions(explicit_schema=schema, unexpected_field_behavior="error"),
    ).select(list(RESULT_COLUMNS))
    distinct = everything.group_by(list(RESULT_COLUMNS)).aggregate([])
    per_key = distinct.group_by(list(KEY_COLUMNS)).aggregate([([], "count_all")])
    if per_key.num_rows != distinct.num_rows:
        twice = [row for row in per_key.to_pylist() if row["count_all"] > 1]
        raise AccountingError(
            f"{len(twice)} windows have results that differ, the first is {twice[0]['carrier']} at {twice[0]['hour']}: "
            "a repeated result must equal the first one"
        )
    return Results(distinct.select(list(RESULT_COLUMNS)), everything.num_rows - distinct.num_rows)


def check_accounts(results: Results, carriers: pa.Array, hours: pa.Array) -> None:
    """Check that each flight, given by its carrier and scheduled hour (as text), is in exactly one result.

    Compares the count of every window of every carrier, not only the sum.

    Raises:
        AccountingError: any count differs, with the first few; or a result is there twice.
    """
    import pyarrow as pa

    if results.repeated_count:
        raise AccountingError(f"{results.repeated_count} results are in the stream twice: the sink writes exactly once")
    wanted = pa.table({"hour": hours, "carrier": carriers}).group_by(list(KEY_COLUMNS)).aggregate([([], "count_all")])
    expected = _by_key(wanted.to_pylist(), "count_all")
    found = _by_key(results.table.to_pylist(), "flights")
    differences = [
        f"{carrier} at {hour}: {found.get((hour, carrier), 0)} instead of {expected.get((hour, carrier), 0)}"
        for hour, carrier in sorted(expected.keys() | found.keys())
        if found.get((hour, carrier)) != expected.get((hour, carrier))
    ]
    if differences:
        listed = "; ".join(differences[:SHOWN_DIFFERENCE_COUNT_MAX])
        raise AccountingError(
            f"the results count {results.flight_count} flights, {len(carriers)} were written; "
            f"{len(differences)} windows differ: {listed}"
        )


def _by_key(rows: Iterable[dict[str, object]], value: str) -> dict[tuple[str, str], object]:
    return {(str(row["hour"]), str(row["carrier"])): row[value] for row in rows}
