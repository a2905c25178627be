"""Check that positions of a deleted stream are not used in another stream with the same name."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from penstock.jobs.errors import StreamRecreatedError
from penstock.model.errors import PenstockError


@contextmanager
def checked_after_failure(check: Callable[[], None]) -> Iterator[None]:
    """If the block fails, call `check`, and raise its `StreamRecreatedError` in place of the block's error.

    Positions of one stream in another one may look like damage, or like a truncation. If `check` fails otherwise,
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
