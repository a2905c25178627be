"""Numbers that draw cases: the first few run with each change, the others nightly."""

from __future__ import annotations

import pytest


def drawn_seeds(count: int, *, daily: int) -> list[object]:
    """Return the parameters 0 to `count` - 1, of which the first `daily` run with each change."""
    return [pytest.param(seed, marks=() if seed < daily else pytest.mark.nightly) for seed in range(count)]
