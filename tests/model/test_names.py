"""Ids and names of segments."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from penstock.model.errors import InvalidNameError
from penstock.model.names import (
    check_new_scope_name,
    check_new_stream_name,
    check_scope_name,
    check_stream_name,
    check_users_new_scope_name,
    check_users_new_stream_name,
    check_written_stream_name,
    is_mark_segment,
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
def test_an_invalid_segment_name_is_refused(name: str) -> None:
    """S-035: another number of parts, or parts that are no numbers."""
    with pytest.raises(InvalidNameError):
        parse_segment_name(name)


FILE_SYSTEM_NAMES = (".", "..", ".snapshot", ".reserved", ".well-known")


@pytest.mark.parametrize("name", ["a", "...", "-", "a.b-C9", ".hidden", "A" * 250, "penstock-storage"])
def test_users_can_create_scopes_and_streams_of_ordinary_names(name: str) -> None:
    assert check_users_new_scope_name(name) == name
    assert check_users_new_stream_name(name) == name


@pytest.mark.parametrize("name", [*FILE_SYSTEM_NAMES, "", "a/b", "a_b", "A" * 256])
def test_names_with_a_meaning_of_their_own_cannot_be_created(name: str) -> None:
    for check in (check_new_scope_name, check_new_stream_name, check_users_new_scope_name, check_users_new_stream_name):
        with pytest.raises(InvalidNameError) as refused:
            check(name)
        assert len(str(refused.value)) < 400


@pytest.mark.parametrize("name", FILE_SYSTEM_NAMES)
def test_segments_with_names_of_earlier_releases_can_be_named(name: str) -> None:
    """Otherwise nothing could delete it."""
    assert check_scope_name(name) == name
    assert check_stream_name(name) == name


@pytest.mark.parametrize("length", [251, 255])
def test_a_stream_leaves_room_for_the_name_of_its_watermarks(length: int) -> None:
    """Those of the system have none."""
    with pytest.raises(InvalidNameError, match=f"{length} characters, 250 are possible"):
        check_new_stream_name("A" * length)
    assert check_new_stream_name("_RG" + "A" * (length - 3))
    assert check_new_scope_name("A" * length)


def test_scopes_do_not_begin_as_the_names_of_long_term_storage_itself() -> None:
    with pytest.raises(InvalidNameError, match="reserved for long-term storage"):
        check_new_scope_name("penstock-storage.orders")
    assert check_new_stream_name("penstock-storage.orders")


def test_internal_names_are_not_for_users() -> None:
    for check in (check_users_new_scope_name, check_users_new_stream_name):
        with pytest.raises(InvalidNameError, match="reserved for the system"):
            check("_x")
    assert check_new_scope_name("_x")
    assert check_new_stream_name("_RGaudit")
    with pytest.raises(InvalidNameError, match="watermarks"):
        check_new_stream_name("_MARKorders")


@pytest.mark.parametrize("name", ["_MARKorders", "_RGaudit"])
def test_users_do_not_write_into_watermarks_and_group_state(name: str) -> None:
    with pytest.raises(InvalidNameError, match="users cannot write"):
        check_written_stream_name(name)
    assert check_written_stream_name("orders")


def test_segments_of_watermarks_are_known_by_their_names() -> None:
    assert is_mark_segment("s/_MARKorders/0.#epoch.0")
    assert not is_mark_segment("s/orders/0.#epoch.0")
    assert not is_mark_segment("_MARKs/orders/0.#epoch.0")
