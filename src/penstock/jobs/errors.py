"""What can go wrong with a job, beyond what goes wrong with the store."""

from __future__ import annotations

from penstock.model.errors import PenstockError


class ExportTargetError(PenstockError):
    """A table or directory that is exported to is not as it should be, or cannot be reached. Nothing was committed."""


class SparkTaskError(PenstockError):
    """Tasks of a job have failed in Spark for the last time. A job that only reads may be run again."""
