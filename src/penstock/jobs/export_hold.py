"""`ExportHold`: an export as a subscriber of its stream, so that retention by consumption keeps what it lacks.

The subscriber is a reader group without readers, as that of a streaming query. Its position is that of the latest
commit, so its unread bytes are the lag of the export.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from penstock.model.errors import InvalidArgumentError, NoSuchReaderGroupError, PenstockError
from penstock.model.stream_cuts import StreamCut
from penstock.spark.options import StoreSettings
from penstock.spark.store import run_in_client
from penstock.spark.subscription import hold, release

if TYPE_CHECKING:
    from penstock import aio

#: The names of the groups of exports begin so.
GROUP_PREFIX: str = "export-"

_log = logging.getLogger(__name__)


class ExportHold:
    """See the module. `name`: of the export; its group is ``export-<name>`` in the scope of the stream."""

    def __init__(self, settings: StoreSettings, scope: str, name: str) -> None:
        self._settings = settings
        self.group: str = f"{scope}/{GROUP_PREFIX}{name}"

    def begin(self, position: StreamCut) -> None:
        """Keep the events after the position of the table, and no others.

        Raises `InvalidArgumentError` if the group is that of another stream, and as `Client.reader_group`.
        """
        cuts = _cuts(position)
        known = run_in_client(self._settings, self._streams)
        if known - cuts.keys():
            raise InvalidArgumentError(
                f"reader group {self.group} holds events of {', '.join(sorted(known))}: give the export of "
                f"{', '.join(cuts)} another --subscriber, or delete the group"
            )
        hold(self._settings, self.group, cuts)
        release(self._settings, self.group, cuts)

    def advance(self, position: StreamCut) -> None:
        """Release the events before the position of the table.

        A failure is logged, and is no error of the export: the events are kept until the next commit or run.
        """
        try:
            release(self._settings, self.group, _cuts(position))
        except PenstockError as error:
            _log.warning("reader group %s holds exported events until the next commit: %s", self.group, error)

    async def _streams(self, client: aio.Client) -> set[str]:
        try:
            async with client.reader_group(self.group) as group:
                return set(await group.stream_cuts())
        except NoSuchReaderGroupError:
            return set()


def _cuts(position: StreamCut) -> dict[str, dict[int, int]]:
    """Return a position without the segments that are not reached yet."""
    reached = {segment: offset for segment, offset in position.positions.items() if offset >= 0}
    return {f"{position.scope}/{position.stream}": reached}
