"""`JobSource`: the source stream of jobs."""

from __future__ import annotations

from penstock.spark.store import StoredStream, client_of


class JobSource(StoredStream):
    """A stream as the Spark source reads it, without Spark. Implements `penstock.jobs.export.ExportSource`."""

    def identity(self) -> str | None:
        """Return the identity of the stream with this name now; None: the controller does not support identities."""
        return client_of(self.settings).stream_identity(self.name)

    def is_sealed(self) -> bool:
        """Return whether the stream is sealed: then its tail is its end."""
        return not client_of(self.settings).segments_of(self.name)
