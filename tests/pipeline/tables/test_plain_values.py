"""Values of an answer as JSON has them."""

import datetime as dt
import json
import uuid
from decimal import Decimal

import pyarrow as pa
import pytest

from klamm.pipeline.tables.core.answer_changes import Change, compare_answers
from klamm.pipeline.tables.plain_values import plain_rows, to_plain


@pytest.mark.parametrize(
    ("value", "plain"),
    [
        (None, None),
        (True, True),
        (1, 1),
        (1.5, 1.5),
        (float("nan"), "NaN"),
        (float("-inf"), "-Infinity"),
        (Decimal(5), 5),
        (Decimal("5.00"), 5.0),
        (Decimal("1000.25"), 1000.25),
        (Decimal("12345678901234567.89"), "12345678901234567.89"),
        (Decimal(123456789012345678901), "123456789012345678901"),
        (dt.datetime(2026, 5, 1, 10, tzinfo=dt.UTC), "2026-05-01T10:00:00.000000Z"),
        (dt.datetime(2026, 5, 1, 10, tzinfo=dt.UTC).replace(tzinfo=None), "2026-05-01T10:00:00.000000"),
        (dt.date(2026, 5, 1), "2026-05-01"),
        (b"\0\xff", "AP8="),
        ([1, Decimal("2.5")], [1, 2.5]),
        ([("a", 1), ("b", b"x")], {"a": 1, "b": "eA=="}),
        ({"a": dt.date(2026, 5, 1)}, {"a": "2026-05-01"}),
        (pa.MonthDayNano([0, 1, 0]), "1 day"),
        (pa.MonthDayNano([1, -2, 3_500_000_000]), "1 month -2 days 00:00:03.5"),
        (pa.MonthDayNano([0, 0, -3_600_000_000_000]), "-01:00:00"),
        (uuid.UUID(int=5), "00000000-0000-0000-0000-000000000005"),
    ],
)
def test_values(value, plain):
    result = to_plain(value)
    assert result == plain
    json.dumps(result, allow_nan=False)


def test_a_name_that_is_there_twice_gets_a_number():
    table = pa.Table.from_arrays([pa.array([1]), pa.array([2]), pa.array([3])], names=["a", "a", "a_1"])
    assert plain_rows(table) == [{"a": 1, "a_1": 2, "a_1_1": 3}]


def test_changes_between_two_answers():
    before = [("a", 1), ("b", 2), ("b", 2), ("c", [1])]
    after = [("a", 1), ("b", 2), ("c", [2]), ("d", {"x": float("nan")})]
    assert compare_answers(before, after) == [
        Change("-", ("b", 2)),
        Change("-", ("c", [1])),
        Change("+", ("c", [2])),
        Change("+", after[3]),
    ]
    assert compare_answers(after, after) == []
    assert len(compare_answers([(1,)], [(True,)])) == 2
