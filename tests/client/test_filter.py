"""The filter of `klamm consume --where`: it finds what it should and can do nothing else."""

import random
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.client.filter.expression import NODES_MAX, TEXT_MAX, FilterError, compile_filter

RECORD = SimpleNamespace(
    topic="orders",
    partition=2,
    offset=41,
    timestamp=1_790_000_000_000,
    key=b"table-7",
    value=b'{"price": 12.5, "who": {"name": "Ada", "tags": ["vip", "early"]}, "n": "3"}',
    headers=(("trace", b"abc"), ("empty", None)),
)


@pytest.mark.parametrize(
    "text",
    [
        'key == "table-7"', "value.price > 10 and value.price <= 12.5", 'value.who.name in ("Ada", "Grace")',
        'value["who"]["tags"][0] == "vip"', 'value.who.tags[-1] == "early"', '"vip" in value.who.tags',
        'headers["trace"] == "abc"', 'exists(headers["trace"]) and not exists(headers["none"])', "offset % 2 == 1",
        'like(key, "table-*")', 'startswith(key, "table") or false', "number(value.n) * 2 == 6", "partition == 2",
        "value.missing == None", "value.missing is None", "not (value.missing == 0)", 'contains(value, "Ada")',
        "len(value.who.tags) == 2", "size > 10", "10 < value.price < 13", "-value.price < 0", 'upper(key) == "TABLE-7"',
        'topic == "orders" and timestamp > 1e12', "value.price / 0 == 1 or true",
        'timestamp > "2026-09-21" and timestamp < "2026-09-22T00:00:00Z"', '"2026-09-21T13:33:20+00:00" < timestamp',
        "not exists(number(key))", "not exists(value.price / 0)",
    ],
)  # fmt: skip
def test_what_passes(text):
    assert compile_filter(text)(RECORD) is True


@pytest.mark.parametrize(
    "text",
    ["value.missing > 1", "value.missing < 1", 'value.price == "12.5"', "key.x.y.z == 1",
     'value.price < "z"',
     # What cannot be computed is unknown: neither it nor its opposite passes, and it equals nothing.
     "value.price / 0 == None", "not (value.price / 0 == 1)", "not (value.missing > 0)", 'not (value.price < "z")',
     "value.who * 2 == value.missing", "number(key) == None", "not (number(key) in (1, 2))",
     "value.price % 0 == value.missing",
     "len(value.price) == None", "value.price in value.price", "not (value.price in value.missing)",
     "value.price / 0 == 1 and true", "-value.who == None", "10 < value.price / 0",
     "key.__class__", 'headers["empty"] == "x"', '"x" in value.missing', "value[0] == 1"],
)  # fmt: skip
def test_what_does_not(text):
    assert compile_filter(text)(RECORD) is False


@pytest.mark.parametrize(
    "text",
    [
        '__import__("os").system("true")', "key.encode()", "open('x')", "exec('1')", "[x for x in value]", "lambda: 1",
        'f"{key}"', "value ** 9", "1 << 99", "key if value else 1", "(x := 1)", "len(1, 2)", "len(key, key=1)", "os",
        "value[key]", "value[1:2]", "await key", "print", "*value", "{1: 2}", "b'x' == key", "1j", "...", "",
        "a b", "key ==", "(" * 500 + "1" + ")" * 500, "not " * 500 + "key", "1" + "+1" * NODES_MAX,
        "x" * (TEXT_MAX + 1),
        "value" + ".a" * 60,
        # Text and numbers, known as such before any record is looked at.
        "key > 5", '"a" * 999999999', '"a" * 999999999 == key', 'len(value) > "x"', "value == 5", "-key == 1",
        'size == "1"', "partition < topic", '"x" < true', '(key == "a") > 1', 'timestamp > "yesterday"',
        'offset > "2026-01-01"',
    ],
)  # fmt: skip
def test_what_is_no_filter_is_refused_with_a_sentence(text):
    with pytest.raises(FilterError):
        compile_filter(text)


def test_records_that_cannot_be_judged_are_counted_with_a_reason():
    null_key = SimpleNamespace(**{**vars(RECORD), "key": None, "offset": 42})
    passes = compile_filter('value.price > "x"')
    assert [passes(RECORD), passes(null_key)] == [False, False]
    assert (passes.unjudged, passes.reason) == (
        2, "a number and text cannot be compared (the first at orders/2@41)",
    )  # fmt: skip
    passes.forget_unjudged()
    missing = compile_filter("value.missing > 1")  # what is not there needs no explanation
    assert not missing(RECORD)
    assert (passes.unjudged, missing.unjudged) == (0, 0)
    torn = compile_filter("value.price > 1")
    assert not torn(SimpleNamespace(**{**vars(RECORD), "value": b"{"}))
    assert "not JSON" in torn.reason


def test_a_value_that_is_no_json_has_no_fields():
    odd = SimpleNamespace(**{**vars(RECORD), "value": b"\xff\xfe", "key": None, "headers": ()})
    assert not compile_filter("value.price > 1")(odd)
    assert compile_filter("key == None and not exists(value.a)")(odd)
    deep = SimpleNamespace(**{**vars(RECORD), "value": b"[" * 100_000})
    assert not compile_filter("value.price > 1")(deep)


@given(st.text(max_size=60))
def test_any_text_is_a_filter_or_refused(text):
    try:
        passes = compile_filter(text)
    except FilterError:
        return
    assert passes(RECORD) in (True, False)


def test_random_expressions_never_fail_on_a_record():
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    leaves = ["key", "value", "value.price", 'headers["trace"]', "3", '"x"', "offset", "None", "value.who.tags", "size"]

    def expression(depth: int) -> str:
        if depth == 0 or chance.random() < 0.2:
            return chance.choice(leaves)
        one, other = expression(depth - 1), expression(depth - 1)
        return chance.choice(
            [f"({one} {op} {other})" for op in ("and", "or", "==", "<", "in", "not in", "+", "*", "%", "/", "-")]
            + [f"len({one})", f"not ({one})", f"contains({one}, {other})", f"number({one})", f"like({one}, {other})"]
        )

    for _ in range(2000):
        text = expression(4)
        try:
            compile_filter(text)(RECORD)
        except FilterError:
            continue


def test_fields_that_are_missing_are_counted_and_a_near_one_is_named():
    """A misspelt field is None like an absent one, so the filter passed nothing and said nothing."""
    condition = compile_filter('value.prise > 5 or value.who.nam == "x" or headers["trac"] == "y"')
    assert [condition(RECORD) for _ in range(3)] == [False] * 3
    assert list(condition.misses.sentences()) == [
        "--where: value.prise is missing in 3 of 3 records; did you mean price?",
        "--where: value.who.nam is missing in 3 of 3 records; did you mean name?",
        "--where: headers['trac'] is missing in 3 of 3 records; did you mean trace?",
    ]
    condition.forget_unjudged()
    assert list(condition.misses.sentences()) == []


@pytest.mark.parametrize(
    "text",
    [
        "value.price > 5",
        "exists(value.other)",
        "value.other is None",
        "value.other == null",
        "value.other.deep is None",
    ],
)
def test_a_field_whose_absence_is_asked_about_is_not_missing(text):
    condition = compile_filter(text)
    condition(RECORD)
    assert list(condition.misses.sentences()) == []


def test_a_field_below_a_missing_one_is_counted_once():
    condition = compile_filter("value.other.deep > 1")
    condition(RECORD)
    assert list(condition.misses.sentences()) == ["--where: value.other is missing in 1 of 1 record"]
