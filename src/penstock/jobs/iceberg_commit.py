"""`SingleAttempt`: a transaction of PyIceberg whose changes are sent once. Importing this module needs PyIceberg.

PyIceberg's own commit rebases a snapshot on any other commit, and retries: a batch whose position has changed would be
added twice. PyIceberg has no public way to send the staged changes once, so this class reads the two fields that
`Transaction` declares for them.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyiceberg.table import Transaction
from pyiceberg.table.update import AssertTableUUID

if TYPE_CHECKING:
    from pyiceberg.catalog import Catalog


class SingleAttempt(Transaction):  # type: ignore[misc]  # PyIceberg is not installed where types are checked
    """Changes of a table, on condition that its main branch is unchanged since the table was loaded."""

    def send(self, catalog: Catalog) -> None:
        """Send the changes in one request. Raises the errors of the catalogue; no attempt is repeated."""
        requirements = (*self._requirements, AssertTableUUID(uuid=self._table.metadata.table_uuid))
        catalog.commit_table(self._table, requirements, self._updates)
