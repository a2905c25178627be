"""`JobSource`: a stream as jobs read it."""

from __future__ import annotations

from penstock.spark.store import StoredStream, client_of


class JobSource(StoredStream):
    """What the Spark source reads from, without Spark. Implements `penstock.jobs.export.ExportSource`."""

    def is_sealed(self) -> bool:
        """Say whether the stream takes no more events: its tail is its end."""
        return not client_of(self.settings).segments_of(self.name)
