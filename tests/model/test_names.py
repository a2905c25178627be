"""Ids and names of segments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import InvalidNameError
from penstock.model.names import (
    is_transient_segment,
    parent_segment_name,
    parse_segment_name,
    primary_name,
    segment_epoch,
    segment_id,
    segment_name,
    segment_number,
    transaction_segment_name,
    transient_segment_name,
)

NUMBERS = st.integers(0, 2**31 - 1)


@given(NUMBERS, NUMBERS)
def test_number_and_epoch_come_back_from_a_segments_id_and_from_its_name(number: int, epoch: int) -> None:
    """S-035: 32 bits each, the epoch in the upper ones. Names of its transactions lead back to it."""
    packed = segment_id(number, epoch)
    assert 0 <= packed < 2**63
    assert packed == epoch * 2**32 + number
    assert (segment_number(packed), segment_epoch(packed)) == (number, epoch)
    name = segment_name("scope", "stream", packed)
    assert name == f"scope/stream/{number}.#epoch.{epoch}"
    assert parse_segment_name(name) == ("scope", "stream", packed)
    assert parent_segment_name(transaction_segment_name(name, epoch, number)) == name


def test_names_of_segments_of_transactions() -> None:
    """S-035: the transaction's two halves in 16 hexadecimal digits each, negative ones as they are in memory.

    Neither these names nor the epoch say where a segment is placed; a name without an epoch is of epoch 0.
    """
    name = segment_name("scope", "stream", segment_id(7, 3))
    transaction = transaction_segment_name(name, 0x300000001, -2)
    assert transaction == "scope/stream/7.#epoch.3#transaction.0000000300000001fffffffffffffffe"
    transient = transient_segment_name(name, bytes(15) + b"\1", bytes(15) + b"\2")
    assert transient == f"scope/stream/7.#epoch.3#transient.{1:032x}.{2:032x}"
    assert [is_transient_segment(each) for each in (name, transaction, transient)] == [False, False, True]
    for each in (name, transaction, transient):
        assert parent_segment_name(each) == name
        assert primary_name(each) == "scope/stream/7"
    assert parse_segment_name("scope/stream/7") == ("scope", "stream", segment_id(7, 0))


@pytest.mark.parametrize(
    "name", ["", "7", "stream/7.#epoch.3", "a/b/c/7", "scope/stream/x.#epoch.3", "scope/stream/7.#epoch.x", "a/b/-1"]
)
def test_what_is_no_name_of_a_segment_is_refused(name: str) -> None:
    """S-035: another number of parts, or parts that are no numbers."""
    with pytest.raises(InvalidNameError):
        parse_segment_name(name)
