"""Routing: routing keys and table keys to [0, 1), segments to containers.

All use murmur3-128, over UTF-16LE text or over the bytes of a table's key, as Pravega's clients and servers do, so that
every client maps a key to the same segment and every server maps a segment to the same container.

Source: Pravega EventRouter / HashHelper, KeyValueTableSegments, SegmentToContainerMapper; Guava's consistent hash.
"""

from __future__ import annotations

import re
from functools import lru_cache

import mmh3

from penstock.model.murmur import murmur3_first_64
from penstock.model.names import ContainerId, primary_name

#: Java's ``"EventRouter".hashCode()``.
ROUTING_SEED = 1741865571
#: Java's ``"SegmentToContainerMapper".hashCode()``.
CONTAINER_SEED = 1661405012
#: Java's ``"KeyValueTableRouter".hashCode()``.
TABLE_SEED = -2020233499
_FRACTION_SCALE = 1.0 / (1 << 52)
_SYSTEM_SEGMENT = re.compile(r"_system/containers/.+_(\d+)\Z")


def _hash64(text: str, seed: int) -> int:
    return mmh3.hash64(text.encode("utf-16-le", "surrogatepass"), seed, True, signed=False)[0]


def routing_key_hash(routing_key: str) -> float:
    """Map `routing_key` to [0, 1). Equal keys give equal numbers in every Pravega client."""
    return (_hash64(routing_key, ROUTING_SEED) >> 12) * _FRACTION_SCALE


@lru_cache(maxsize=65536)
def table_key_hash(primary_key: bytes) -> float:
    """Map the primary part of a key of a key-value table to [0, 1), as Pravega's Java client does."""
    return (murmur3_first_64(primary_key, TABLE_SEED) >> 12) * _FRACTION_SCALE


def consistent_hash(state: int, bucket_count: int) -> int:
    """Return the bucket in [0, bucket_count) of the 64-bit hash `state` (jump consistent hash)."""
    candidate = 0
    while True:
        state = (2862933555777941757 * state + 1) & 0xFFFFFFFFFFFFFFFF
        following = int((candidate + 1) / (((state >> 33) + 1) / 2147483648.0))
        if not 0 <= following < bucket_count:
            return candidate
        candidate = following


@lru_cache(maxsize=65536)
def container_of(segment: str, container_count: int) -> ContainerId:
    """Return the container that owns `segment` (any stream, transaction, transient, index or table segment).

    A container's own segments are in the container that their name contains, which only `admin_container_of` handles.
    """
    return ContainerId(consistent_hash(_hash64(primary_name(segment), CONTAINER_SEED), container_count))


def admin_container_of(segment: str, container_count: int) -> ContainerId:
    """Return the container that owns `segment`, which may be one of a container's own.

    A name after a ``$`` is that of an index of the segment before it.
    """
    owner = segment.partition("$")[0]
    system = _SYSTEM_SEGMENT.match(owner)
    return ContainerId(int(system[1]) % container_count) if system else container_of(owner, container_count)
