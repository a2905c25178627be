"""List prices of requests to object stores, and what a log in a bucket costs a month. Pure functions.

Prices are those of us-east-1, without storage, which a log hardly needs, and without taxes and discounts. They are
constants with a date: check them against the provider's list before you rely on them.
"""

from __future__ import annotations

from dataclasses import dataclass

#: When the prices below were taken from the provider's lists.
PRICES_AS_OF = "2026-11"
SECONDS_PER_MONTH = 30 * 86_400
_GIB = 1024**3
#: Bytes of the longest object of a log (`batch_bytes_max`).
LOG_OBJECT_BYTES = 8 * 1024**2


@dataclass(frozen=True, slots=True)
class ObjectPrices:
    """Prices in US dollars.

    Attributes:
        name: of the storage class.
        per_write: a creation, a replacement, or a page of a list.
        per_read: a read of an object or of its metadata.
        per_sent_gib: content of objects that are created.
        per_received_gib: content of objects that are read, in the same region.
    """

    name: str
    per_write: float
    per_read: float
    per_sent_gib: float = 0.0
    per_received_gib: float = 0.0

    def month(
        self, *, writes_per_s: float, reads_per_s: float, sent_bytes_per_s: float, received_bytes_per_s: float
    ) -> float:
        """Return the price of a month at these rates."""
        per_s = (
            writes_per_s * self.per_write
            + reads_per_s * self.per_read
            + sent_bytes_per_s / _GIB * self.per_sent_gib
            + received_bytes_per_s / _GIB * self.per_received_gib
        )
        return per_s * SECONDS_PER_MONTH


S3_STANDARD = ObjectPrices("S3 Standard", 0.005 / 1000, 0.0004 / 1000)
S3_EXPRESS = ObjectPrices("S3 Express One Zone", 0.00113 / 1000, 0.00003 / 1000, 0.0032, 0.0006)
#: What names of Express buckets end with.
_EXPRESS_SUFFIX = "--x-s3"


def prices_of(bucket: str) -> ObjectPrices | None:
    """Return the prices of a bucket by its URL; None for services other than S3, whose prices are not known here.

    A service with an interface like S3's has the same URLs, and prices of its own.
    """
    if not bucket.startswith("s3://"):
        return None
    return S3_EXPRESS if bucket.rstrip("/").endswith(_EXPRESS_SUFFIX) else S3_STANDARD


def log_writes_per_s(*, stores: int, interval_s: float, bytes_per_s: float) -> float:
    """Return the objects that the logs of `stores` create a second under load, at most.

    `interval_s`: between two objects of a store. `bytes_per_s`: appended, over all stores.
    """
    return max(stores / interval_s, bytes_per_s / LOG_OBJECT_BYTES)


def log_month(prices: ObjectPrices, *, stores: int, interval_s: float, bytes_per_s: float) -> float:
    """Return the price of a month of the logs of `stores` under load, in US dollars: creations and bytes sent."""
    return prices.month(
        writes_per_s=log_writes_per_s(stores=stores, interval_s=interval_s, bytes_per_s=bytes_per_s),
        reads_per_s=0.0,
        sent_bytes_per_s=bytes_per_s,
        received_bytes_per_s=0.0,
    )


def idle_log_month(prices: ObjectPrices, *, stores: int, polls_per_s: float) -> float:
    """Return the price of a month without appends: `polls_per_s` of each store, that no other has claimed its logs."""
    return stores * polls_per_s * prices.per_read * SECONDS_PER_MONTH
