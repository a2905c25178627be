"""The blocking `RevisionedStream`. Generated from `penstock.client.state.revisioned_stream`: do not edit.

`python -m penstock_tools.generate_sync` regenerates it; see ``docs/sync-client.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic

from penstock.client.state import revisioned_stream as aio
from penstock.client.state.revisioned_stream import Revision, Value
from penstock.client.sync.handle import Handle


class RevisionedStream(Handle[aio.RevisionedStream[Value]], Generic[Value]):
    """See the module. Made by `Client.revisioned_stream`. Calls may be concurrent; writes are serialized."""

    @property
    def name(self) -> str:
        """The stream as ``scope/stream``."""
        return self._part.name

    def oldest(self) -> Revision:
        """Return the revision before the first entry that still exists."""
        return self._portal.call(self._part.oldest())

    def latest(self) -> Revision:
        """Return the revision after the last entry."""
        return self._portal.call(self._part.latest())

    def read(self, after: Revision) -> Iterator[tuple[Revision, Value]]:
        """Iterate over the entries that now exist after a revision, each with the revision after it.

        Raises `SegmentTruncatedError` if some of them were truncated, `SerializationError`.
        """
        return self._portal.iterate(self._part.read(after))

    def write(self, value: Value) -> None:
        """Append an entry unconditionally.

        Stored exactly once, even if replies are lost. Raises `SerializationError`, `OutcomeUnknownError` when the time
        limit expires.
        """
        self._portal.call(self._part.write(value))

    def write_if(self, latest: Revision, value: Value) -> Revision | None:
        """Append an entry if `latest` is the latest revision; return the new one, None if there was a newer.

        The result is exact, even if replies are lost. Raises `SerializationError`, `OutcomeUnknownError` when the time
        limit expires.
        """
        return self._portal.call(self._part.write_if(latest, value))

    def mark(self) -> Revision | None:
        """Return the mark, a revision agreed on by the clients, such as where to begin reading; or None."""
        return self._portal.call(self._part.mark())

    def set_mark(self, expected: Revision | None, mark: Revision | None) -> bool:
        """Replace the mark if it is `expected`; return whether it was. None means no mark.

        Raises `OutcomeUnknownError` if the reply was lost: the mark may be replaced or not.
        """
        return self._portal.call(self._part.set_mark(expected, mark))

    def truncate(self, revision: Revision) -> None:
        """Delete the entries before a revision; no effect if they are deleted. The controller has no record of it."""
        self._portal.call(self._part.truncate(revision))
