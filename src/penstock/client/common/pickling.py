"""`NotPicklable`: the error when a client, or an object made by one, is pickled."""

from __future__ import annotations

from typing import NoReturn

from penstock.model.errors import NotPicklableError


class NotPicklable:
    """Base of objects that belong to one process and event loop. Pickling and copying raise `NotPicklableError`."""

    __slots__ = ()

    def __reduce__(self) -> NoReturn:
        raise NotPicklableError(
            f"{self!r} cannot be pickled or copied: it belongs to one process and one event loop. Send the "
            "controller's address to the other process, and connect there. Stream cuts, batch ranges, events and "
            "errors can be pickled"
        )
