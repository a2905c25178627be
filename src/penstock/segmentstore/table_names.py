"""`tables_page`: names of table segments of a container, to find tables that no controller knows."""

from __future__ import annotations

from penstock.model.errors import ContainerNotFoundError, CorruptionError
from penstock.model.names import ContainerId
from penstock.segmentstore.container.catalog import metadata_segment
from penstock.segmentstore.container.container import SegmentContainer
from penstock.segmentstore.container.metadata import decode_record
from penstock.segmentstore.container.segment import SegmentFlags
from penstock.segmentstore.later_format import LaterFormatError
from penstock.segmentstore.store import SegmentStore
from penstock.wire.statistics import TablesPage, TablesQuery

#: Segment records examined for one answer: some milliseconds of work.
_RECORDS_MAX = 500
#: Sorts after all names with a given prefix: no byte of UTF-8 is this high.
_BEHIND_ALL = b"\xff"


async def tables_page(store: SegmentStore, query: TablesQuery) -> TablesPage:
    """Return a page of tables. Raises `ContainerNotFoundError`."""
    container = next((each for each in store.containers if each.id == query.container), None)
    if container is None:
        raise ContainerNotFoundError(ContainerId(query.container), "it is not running here")
    return await tables_of(container, query.begin, query.end, query.after, _RECORDS_MAX)


async def tables_of(container: SegmentContainer, begin: str, end: str, after: str, limit: int) -> TablesPage:
    """Return tables whose names have this beginning and end.

    Over all pages, each table that exists throughout is returned at least once, even if it is unloaded or loaded
    meanwhile; at most `limit` inactive ones are examined.
    """
    names = [] if after else _active_tables(container, begin, end)
    if container.catalog.has_inactive:
        table = container.state.metadata.by_name[metadata_segment(container.id)]
        first = begin.encode()
        page = await container.tables.entries(
            table, limit=limit, token=after.encode(), first=first, last=first + _BEHIND_ALL
        )
        for entry in page.entries:
            name = entry.key.decode()
            if name.endswith(end) and _is_table(table.name, name, entry.value):
                names.append(name)
        if page.entries:
            return TablesPage(names, page.token.decode())
    # Includes tables loaded since the first page, which its scan of inactive ones missed.
    return TablesPage(names + _active_tables(container, begin, end))


def _is_table(table: str, name: str, record: bytes) -> bool:
    try:
        return bool(decode_record(record).flags & SegmentFlags.TABLE)
    except LaterFormatError as error:
        raise error.at(f"the record of {name} in {table}") from error
    except ValueError as error:
        raise CorruptionError(table, 0, f"record of {name}: {error}") from error


def _active_tables(container: SegmentContainer, begin: str, end: str) -> list[str]:
    return [
        name
        for name, segment in container.state.metadata.by_name.items()
        if segment.is_table and not segment.is_deleted and name.startswith(begin) and name.endswith(end)
    ]
