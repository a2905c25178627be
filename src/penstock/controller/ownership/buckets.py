"""`Buckets`: which streams this controller handles in background cycles.

Streams are assigned to buckets by their names, and buckets to live controllers by the names of these. Each controller
computes the assignment itself from the members that it last saw. So for a moment after a change two controllers may own
a bucket, or none: the steps of a cycle must be conditional, like all announced work, and must be repeated by the next
cycle. Failure by failure: ``docs/controller-ownership.md``.

Source: controller-internals 14 (buckets of streams); the assignment, without a leader, is
specific to Penstock.
"""

from __future__ import annotations

import struct
from collections.abc import Collection, Mapping
from functools import lru_cache
from hashlib import blake2b

from penstock.controller.ownership.peers import Peers


class Buckets:
    """The buckets of one kind of background cycle. `kind` is its name, `count` (1 or more) its number of buckets.

    Each kind is assigned separately, so that with few buckets per kind they do not all fall to one controller.
    """

    def __init__(self, kind: str, count: int, peers: Peers) -> None:
        self.kind: str = kind
        self.count: int = count
        self._peers = peers

    def owned(self, scope: str, stream: str) -> bool:
        """Say whether this controller handles a stream now. Makes no request; False while it is no member."""
        name = self._peers.own_name
        return bool(name) and self._owners().get(bucket_of(scope, stream, self.count)) == name

    @property
    def own_name(self) -> str:
        """This controller's name in `shares`; empty while it is no member."""
        return self._peers.own_name

    def shares(self) -> Mapping[str, Collection[int]]:
        """Return the buckets of each member, by its name, as currently assigned."""
        shares: dict[str, list[int]] = {name: [] for name in sorted(self._peers.names)}
        for bucket, owner in sorted(self._owners().items()):
            shares[owner].append(bucket)
        return shares

    def _owners(self) -> Mapping[int, str]:
        return shared_out(self.kind, self.count, self._peers.names)


@lru_cache(maxsize=65536)
def bucket_of(scope: str, stream: str, count: int) -> int:
    """Return the bucket of a stream, in [0, `count`): the same one at each controller, and in Pravega."""
    return (java_hash(f"{scope}/{stream}") & 0x7FFFFFFF) % count


def java_hash(text: str) -> int:
    """Return Java's ``String.hashCode`` of `text`, as a number without sign."""
    code = 0
    for (unit,) in struct.iter_unpack("<H", text.encode("utf-16-le", "surrogatepass")):
        code = (31 * code + unit) & 0xFFFFFFFF
    return code


@lru_cache(maxsize=64)
def shared_out(kind: str, count: int, members: frozenset[str]) -> Mapping[int, str]:
    """Return the owner of each of `count` buckets; empty when there are no members.

    Every member gets the same number, or one more. The result depends on the arguments alone, and most buckets keep
    their owner when one member joins or leaves: each pair of bucket and member has a weight, and pairs are taken in
    order of descending weight.
    """
    if not members:
        return {}
    pairs = sorted(
        ((_weight(kind, bucket, member), bucket, member) for bucket in range(count) for member in members),
        reverse=True,
    )
    share, larger_shares = divmod(count, len(members))
    owners: dict[int, str] = {}
    taken = dict.fromkeys(members, 0)
    for _, bucket, member in pairs:
        if bucket in owners or taken[member] > share or (taken[member] == share and larger_shares == 0):
            continue
        larger_shares -= taken[member] == share
        taken[member] += 1
        owners[bucket] = member
    return owners


def _weight(kind: str, bucket: int, member: str) -> bytes:
    return blake2b(f"{kind}/{bucket}/{member}".encode(), digest_size=8).digest()
