"""Request ids of wire commands that show which call of a controller's client they belong to.

The id of a wire request is a number of 64 bits that the store only repeats in its reply. A controller puts a *tag* of
its client's request id into it, so a store can write the client's id into its log without a change of the protocol.
Layout, from the highest bit::

    0 | 1 | whole | 40 bits of tag | 21 bits of number

*whole* is 1 if the tag is the client's id itself, a decimal number below 2^40, as this package's client sends it. Other
ids, such as those of Java clients, have 40 bits of a hash as their tag. The number tells apart the requests of one
connection. Ids of other peers, and of requests without a call, are small or random and have no tag.

See docs/request-ids.md.
"""

from __future__ import annotations

from contextvars import ContextVar
from hashlib import blake2b

#: Bits of a tag, without the bit for *whole*.
TAG_BITS = 40
_NUMBER_BITS = 21
_NUMBER_MASK = (1 << _NUMBER_BITS) - 1
_WHOLE = 1 << TAG_BITS
_HAS_TAG = 1 << 62
_HASH_PREFIX = "~"

#: The tag of the present call, see `tag_of`; 0: there is no call, or it has no id.
request_tag: ContextVar[int] = ContextVar("request_tag", default=0)


def tag_of(request_id: str) -> int:
    """Return the tag of a client's request id, with the bit for *whole*; 0 for an empty id."""
    if not request_id:
        return 0
    if request_id.isascii() and request_id.isdecimal() and len(request_id) <= len(str(_WHOLE)):
        number = int(request_id)
        if number < _WHOLE and str(number) == request_id:
            return _WHOLE | number
    return int.from_bytes(blake2b(request_id.encode(), digest_size=TAG_BITS // 8).digest(), "big")


def tag_text(tag: int) -> str:
    """Return how a tag is written in logs: the client's id if it is whole, else ``~`` and ten hexadecimal digits."""
    return str(tag - _WHOLE) if tag & _WHOLE else f"{_HASH_PREFIX}{tag:010x}"


def tagged(number: int) -> int:
    """Return the id of request `number` of a connection, with the tag of the present call.

    Without a call it is the number. With one, numbers that differ by a multiple of 2^21 get the same id.
    """
    tag = request_tag.get()
    return _HAS_TAG | tag << _NUMBER_BITS | number & _NUMBER_MASK if tag else number


def text_of(wire_id: int) -> str:
    """Return how the id of a wire request is written in logs: its tag, or the number if it has none."""
    if wire_id < 0 or not wire_id & _HAS_TAG:
        return str(wire_id)
    return tag_text(wire_id >> _NUMBER_BITS & (_WHOLE | _WHOLE - 1))
