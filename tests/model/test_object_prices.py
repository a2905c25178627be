"""List prices of a log in a bucket; the table of the guide is computed by the same functions."""

from __future__ import annotations

from pathlib import Path

import pytest

from penstock.model.object_prices import (
    PRICES_AS_OF,
    S3_EXPRESS,
    S3_STANDARD,
    ObjectPrices,
    idle_log_month,
    log_month,
    log_writes_per_s,
    prices_of,
)

GUIDE = Path(__file__).parents[2] / "docs" / "guide" / "zero-disk.md"
MB = 1_000_000


def test_a_log_creates_one_object_per_interval_or_per_8_mib() -> None:
    assert log_writes_per_s(stores=3, interval_s=0.25, bytes_per_s=MB) == 12.0
    assert log_writes_per_s(stores=1, interval_s=0.25, bytes_per_s=0) == 4.0
    assert log_writes_per_s(stores=1, interval_s=0.25, bytes_per_s=64 * 1024**2) == 8.0


def test_prices_of_a_month() -> None:
    """Twelve creations a second for 30 days at $0.005 per 1 000; Express also bills bytes."""
    assert log_month(S3_STANDARD, stores=3, interval_s=0.25, bytes_per_s=MB) == pytest.approx(12 * 2.592e6 * 5e-6)
    express = 12 * 2.592e6 * 1.13e-6 + MB * 2.592e6 / 1024**3 * 0.0032
    assert log_month(S3_EXPRESS, stores=3, interval_s=0.25, bytes_per_s=MB) == pytest.approx(express)
    assert idle_log_month(S3_STANDARD, stores=1, polls_per_s=0.3) == pytest.approx(0.3 * 2.592e6 * 4e-7)
    reads = S3_EXPRESS.month(writes_per_s=0, reads_per_s=10, sent_bytes_per_s=0, received_bytes_per_s=1024**3)
    assert reads == pytest.approx(2.592e6 * (10 * 3e-8 + 0.0006))


@pytest.mark.parametrize(
    ("bucket", "prices"),
    [("s3://b", S3_STANDARD), ("s3://b--use1-az4--x-s3", S3_EXPRESS), ("gs://b", None), ("az://c", None)],
)
def test_prices_are_known_by_the_buckets_url(bucket: str, prices: ObjectPrices | None) -> None:
    assert prices_of(bucket) is prices


def rows(stores: int) -> list[str]:
    """Return the rows of the guide's table."""
    found: list[str] = []
    for prices in (S3_STANDARD, S3_EXPRESS):
        for interval_s in (0.25, 0.1):
            cells = []
            for rate in (1, 10, 100):
                given = {"stores": stores, "interval_s": interval_s, "bytes_per_s": rate * MB}
                writes, month = log_writes_per_s(**given), log_month(prices, **given)  # type: ignore[arg-type]
                cells.append(f"{writes:.0f}/s, ${month:,.0f}")
            found.append(f"| {prices.name}, {stores} | {interval_s:g} s | {' | '.join(cells)} |")
    return found


@pytest.mark.parametrize("stores", [1, 3])
def test_the_table_of_the_guide_equals_the_results_of_the_functions(stores: int) -> None:
    text = GUIDE.read_text()
    for row in rows(stores):
        assert row in text, row
    assert PRICES_AS_OF in text
