"""Each kind of attribute update on absent, present and changed values: conditions, values, and what fails."""

from __future__ import annotations

import pytest

from penstock.model.errors import BadAttributeError, InvalidArgumentError
from penstock.model.segments import NO_VALUE
from penstock.segmentstore.container.attributes.updates import AttributeUpdate, UpdateKind, evaluate

A = b"a" * 16


@pytest.mark.parametrize(
    ("kind", "old", "value", "expected", "stored"),
    [
        (UpdateKind.NONE, NO_VALUE, 5, NO_VALUE, 5),
        (UpdateKind.NONE, 1, 5, NO_VALUE, None),
        (UpdateKind.REPLACE, NO_VALUE, 5, NO_VALUE, 5),
        (UpdateKind.REPLACE, 9, 5, NO_VALUE, 5),
        (UpdateKind.REPLACE_IF_GREATER, NO_VALUE, 5, NO_VALUE, 5),
        (UpdateKind.REPLACE_IF_GREATER, 4, 5, NO_VALUE, 5),
        (UpdateKind.REPLACE_IF_GREATER, 5, 5, NO_VALUE, None),
        (UpdateKind.ACCUMULATE, NO_VALUE, 5, NO_VALUE, 5),
        (UpdateKind.ACCUMULATE, 4, 5, NO_VALUE, 9),
        (UpdateKind.REPLACE_IF_EQUALS, 4, 5, 4, 5),
        (UpdateKind.REPLACE_IF_EQUALS, 4, 5, 3, None),
        (UpdateKind.REPLACE_IF_EQUALS, NO_VALUE, 5, NO_VALUE, 5),
        (UpdateKind.REPLACE_IF_EQUALS, 4, NO_VALUE, 4, NO_VALUE),
    ],
)
def test_each_kind_of_update_follows_its_condition(
    kind: UpdateKind, old: int, value: int, expected: int, stored: int | None
) -> None:
    """SS-127, as far as attributes are kept in memory: `stored` None means that the condition fails."""
    attributes = {} if old == NO_VALUE else {A: old}
    update = AttributeUpdate(A, kind, value, expected)
    if stored is None:
        with pytest.raises(BadAttributeError) as caught:
            evaluate("s", attributes, [update])
        assert caught.value.actual == old
    else:
        assert evaluate("s", attributes, [update]) == {A: stored}


def test_updates_of_one_attribute_see_each_other_in_order() -> None:
    """Two sums in one batch add up."""
    updates = [AttributeUpdate(A, UpdateKind.ACCUMULATE, 2), AttributeUpdate(A, UpdateKind.ACCUMULATE, 3)]
    assert evaluate("s", {A: 1}, updates) == {A: 6}


def test_a_sum_beyond_64_bits_is_refused() -> None:
    """SS-141: an overflowing sum is the caller's mistake and changes nothing."""
    with pytest.raises(InvalidArgumentError):
        evaluate("s", {A: (1 << 63) - 1}, [AttributeUpdate(A, UpdateKind.ACCUMULATE, 1)])
