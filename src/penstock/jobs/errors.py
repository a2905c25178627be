"""What can go wrong with a job, beyond what goes wrong with the store."""

from __future__ import annotations

from penstock.model.errors import PenstockError


class ExportTargetError(PenstockError):
    """A table or directory that is exported to is unusable, or cannot be reached. Nothing was committed."""


class StreamRecreatedError(PenstockError):
    """The stream that a job's positions belong to was deleted, and another one has its name now. Nothing was done."""


class SparkTaskError(PenstockError):
    """Tasks of a job have failed in Spark for the last time. A job that only reads may be run again."""
