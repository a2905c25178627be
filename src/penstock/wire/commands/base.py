"""The base classes of wire commands."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar


@dataclass(frozen=True, slots=True, eq=False)
class WireCommand:
    """A message of the segment store protocol. Subclasses are frozen dataclasses, fields in wire order.

    Two commands are equal if their fields are. Decoded data are memoryviews, which equal any buffer of the same
    bytes, but not a sequence of buffers; decoded lists are tuples, which equal no Python list.
    """

    #: The type code at the start of the frame.
    TYPE: ClassVar[int]

    # Written once for all: generated for each command, they take as long to make as its other methods, and every client
    # command of a shell waits for that.

    def __eq__(self, other: object) -> bool:
        if type(other) is not type(self):
            return NotImplemented
        names: tuple[str, ...] = self.__match_args__
        return all(getattr(self, name) == getattr(other, name) for name in names)

    def __hash__(self) -> int:
        names: tuple[str, ...] = self.__match_args__
        return hash(tuple(getattr(self, name) for name in names))


class Request(WireCommand):
    """A command to a segment store that has a request id.

    The reply repeats the id. Ids are not unique among the requests in flight: a Java writer uses one for all its
    appends.
    """

    __slots__ = ()

    request_id: int


class Reply(WireCommand):
    """A command to a client, with the request id of the request that it answers."""

    __slots__ = ()

    request_id: int
