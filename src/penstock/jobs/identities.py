"""Positions of a stream that was deleted must not be used in the stream that has its name now."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.jobs.errors import StreamRecreatedError
from penstock.model.errors import PenstockError


@contextmanager
def checked_after_failure(check: Callable[[], None]) -> Iterator[None]:
    """Raise the `StreamRecreatedError` of `check`, if it raises one, in place of an error of the block.

    Positions of one stream in another one may look like damage, or like a truncation. Where `check` fails otherwise,
    the error of the block is raised with a note.
    """
    try:
        yield
    except PenstockError as error:
        try:
            check()
        except StreamRecreatedError:
            raise
        except PenstockError as second:
            error.add_note(f"and the identity of the stream could not be read: {second}")
        raise
