"""`MetadataStore`: tables of versioned values, the interface under all of the controller's records.

Implementations: `SegmentsMetadataStore` (table segments) and `MemoryMetadataStore`. Both pass one conformance suite.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from penstock.model.segments import VERSION_ABSENT, VERSION_ANY

__all__ = ["VERSION_ABSENT", "VERSION_ANY", "MetadataStore", "Removal", "Row", "RowPage", "Write"]


@dataclass(frozen=True, slots=True)
class Row:
    """A stored value. `version` (>= 0) changes with every write of the key and is never reused."""

    key: str
    value: bytes
    version: int


@dataclass(frozen=True, slots=True)
class Write:
    """Put `value` under `key` if its version is `version` (`VERSION_ANY`: unconditionally, `VERSION_ABSENT`: new)."""

    key: str
    value: bytes
    version: int = VERSION_ANY


@dataclass(frozen=True, slots=True)
class Removal:
    """Remove `key` if its version is `version`; with `VERSION_ANY` a missing key is no error."""

    key: str
    version: int = VERSION_ANY


@dataclass(frozen=True, slots=True)
class RowPage:
    """A page of a table. An empty page ends the iteration; otherwise continue from `token`."""

    rows: Sequence[Row]
    token: bytes


class MetadataStore(Protocol):
    """Tables addressed by name. Every write is durable when the call returns.

    All calls but `create_table` and `drop_table` raise `NoSuchSegmentError` when the table does not exist. Any call
    may raise `OutcomeUnknownError`: a write may then have been applied or not.
    """

    async def create_table(self, table: str) -> bool:
        """Create a table; return False if it exists."""

    async def drop_table(self, table: str, *, must_be_empty: bool = False) -> bool:
        """Delete a table and its rows; return False if it does not exist.

        With `must_be_empty` a table that has rows is kept, and `TableNotEmptyError` is raised.
        """

    async def get(self, table: str, keys: Sequence[str]) -> Sequence[Row | None]:
        """Return the row of each key, in order, None for absent ones. One request."""

    async def put(self, table: str, writes: Sequence[Write]) -> Sequence[int]:
        """Apply all writes or none; return the new versions in order. One request.

        Raises `MetadataConflictError` if a version is not as expected.
        """

    async def remove(self, table: str, removals: Sequence[Removal]) -> None:
        """Remove all keys or none. Raises `MetadataConflictError` as `put`."""

    async def rows(self, table: str, *, limit: int, token: bytes = b"") -> RowPage:
        """Return about `limit` rows after `token`, in an unspecified order.

        Rows that persist are returned exactly once; rows written or removed meanwhile may be returned or not. Raises
        `InvalidArgumentError` for a token that is not from a page.
        """
