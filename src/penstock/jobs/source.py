"""`JobSource`: a stream as jobs read it."""

from __future__ import annotations

from penstock.spark.store import StoredStream, client_of


class JobSource(StoredStream):
    """What the Spark source reads from, without Spark. Implements `penstock.jobs.export.ExportSource`."""

    def identity(self) -> str | None:
        """Return the identity of the stream that has the name now; None: the controller has no identities."""
        return client_of(self.settings).stream_identity(self.name)

    def is_sealed(self) -> bool:
        """Return whether the stream takes no more events: its tail is its end."""
        return not client_of(self.settings).segments_of(self.name)
