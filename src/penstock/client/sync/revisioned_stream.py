"""The blocking `RevisionedStream`. Generated from `penstock.client.revisioned_stream`: do not edit.

`python -m penstock.client.generate_sync` makes it anew; see ``docs/sync-client.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Generic

from penstock.client import revisioned_stream as aio
from penstock.client.revisioned_stream import Revision, Value
from penstock.client.sync.handle import Handle


class RevisionedStream(Handle[aio.RevisionedStream[Value]], Generic[Value]):
    """See the module. Made by `Client.revisioned_stream`. Calls at the same time are fine; writes take their turns."""

    @property
    def name(self) -> str:
        """The stream as ``scope/stream``."""
        return self._part.name

    def oldest(self) -> Revision:
        """Return the revision before the first entry that is still there."""
        return self._portal.call(self._part.oldest())

    def latest(self) -> Revision:
        """Return the revision behind the last entry."""
        return self._portal.call(self._part.latest())

    def read(self, after: Revision) -> Iterator[tuple[Revision, Value]]:
        """Iterate over the entries after a revision that are there now, each with the revision behind it.

        Raises `SegmentTruncatedError` if some of them are gone, `SerializationError`.
        """
        return self._portal.iterate(self._part.read(after))

    def write(self, value: Value) -> None:
        """Append an entry, whatever is there.

        Stored once, though replies be lost. Raises `SerializationError`, `OutcomeUnknownError` when the time is up.
        """
        self._portal.call(self._part.write(value))

    def write_if(self, latest: Revision, value: Value) -> Revision | None:
        """Append an entry if `latest` is the latest revision; return the new one, None if there was a newer.

        The answer is exact, though replies be lost. Raises `SerializationError`, `OutcomeUnknownError` when the time
        is up.
        """
        return self._portal.call(self._part.write_if(latest, value))

    def mark(self) -> Revision | None:
        """Return the mark: a revision that clients have agreed on, as where to begin to read. None if there is none."""
        return self._portal.call(self._part.mark())

    def set_mark(self, expected: Revision | None, mark: Revision | None) -> bool:
        """Replace the mark if it is `expected`; return whether it was. None stands for no mark.

        Raises `OutcomeUnknownError` when the reply was lost: the mark may be replaced or not.
        """
        return self._portal.call(self._part.set_mark(expected, mark))

    def truncate(self, revision: Revision) -> None:
        """Forget the entries before a revision; nothing happens if they are gone. The controller is not told."""
        self._portal.call(self._part.truncate(revision))
