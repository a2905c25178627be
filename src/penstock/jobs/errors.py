"""Errors of jobs, besides those of the store."""

from __future__ import annotations

from penstock.model.errors import PenstockError


class ExportTargetError(PenstockError):
    """A table or directory that is exported to is unusable, or cannot be reached. Nothing was committed."""


class StreamRecreatedError(PenstockError):
    """The stream of a job's positions was deleted, and another one has its name now. Nothing was done."""


class SparkTaskError(PenstockError):
    """Tasks of a job have failed in Spark after all retries. A job that only reads may be run again."""
