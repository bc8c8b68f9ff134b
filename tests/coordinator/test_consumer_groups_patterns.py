"""Patterns of topics: RE2's syntax, whole names, and no way to make the broker wait."""

import contextlib
import re
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.coordinator.groups.consumer.pattern import InvalidPattern, Pattern, Patterns


@pytest.mark.parametrize(
    ("pattern", "yes", "no"),
    [
        ("orders", ["orders"], ["order", "orders2", "myorders", ""]),
        ("orders.*", ["orders", "orders-eu"], ["eu-orders"]),
        (r"orders\.[a-z]+", ["orders.eu"], ["orders-eu", "orders.EU", "orders."]),
        ("^a|b$", ["a", "b"], ["ab", "c"]),
        ("(?i)Kitchen", ["KITCHEN", "kitchen"], ["kitchens"]),
        ("(?i:k)itchen", ["Kitchen", "kitchen"], ["kItchen"]),
        ("a(?i)b|c", ["ab", "aB", "C", "c"], ["Ab"]),
        ("[^.]+", ["bar_1"], ["a.b", ""]),
        ("x{2,3}", ["xx", "xxx"], ["x", "xxxx"]),
        ("x{2,}", ["xx", "xxxxx"], ["x"]),
        ("x{2}", ["xx"], ["x", "xxx"]),
        ("(?P<name>a|b)+", ["abba"], ["", "abc"]),
        ("(?:ab)?c", ["abc", "c"], ["ac"]),
        (r"\Qa.b\E", ["a.b"], ["axb"]),
        (r"[[:alpha:]]+[[:digit:]]", ["ab1"], ["a", "1"]),
        (r"\w+\b-\b\w+", ["one-two"], ["one--two", "-two"]),
        (r"\p{Lu}\pL*", ["Ab"], ["ab"]),
        (r"\P{Lu}+", ["ab1"], ["aB"]),
        (r"a\x2db\055c", ["a-b-c"], ["a_b_c"]),
        (r"[\w.-]*?", ["", "a.b-c_d"], ["a b"]),
        (r"[a\-z]+", ["a-z"], ["b"]),
        ("[]a]+", ["]a"], ["b"]),
        ("a{,2}", ["a{,2}"], ["aa"]),
        ("", [""], ["a"]),
        ("()*a", ["a"], ["b"]),
        ("(a*)*b", ["b", "aaab"], ["aaa"]),
        ("ü", [], ["u"]),
        (r"\Aa\z", ["a"], ["aa"]),
    ],
)
def test_patterns_mean_what_re2_says(pattern, yes, no):
    compiled = Pattern(pattern)
    assert compiled.select(yes + no) == frozenset(yes)
    assert all(compiled.matches(name) for name in yes)


@pytest.mark.parametrize(
    "pattern",
    [
        "(",
        ")",
        "a)",
        "[",
        "[a",
        "*",
        "a**",
        "a{2}{3}",
        "+a",
        r"a\1",
        r"\8",
        "(?=a)",
        "(?!a)",
        "(?<=a)b",
        "(?<!a)b",
        r"a\Z",
        "a*+",
        "x{1001}",
        "x{3,2}",
        "(?x)a",
        "[b-a]",
        "[[:nope:]]",
        r"\p{Nope}",
        "\\",
        r"\x{110000}",
        r"\xg1",
        r"\y",
        "{2}",
        "(?P<1>a)",
        "(?P<a",
        "(" * 200 + ")" * 200,
        "((x{1000}){1000})",
        "(?",
        r"\p",
        "a|*",
        r"[\Z]",
    ],
)
def test_what_re2_refuses_is_refused(pattern):
    with pytest.raises(InvalidPattern):
        Pattern(pattern)


LITERALS = st.sampled_from(
    ["a", "b", "c", ".", "-", "[ab]", "[^a]", r"\w", r"\d", r"\.", "^", "$", r"\b", r"\B", "(?:)"]
)
PATTERNS = st.recursive(
    LITERALS,
    lambda inner: st.one_of(
        st.lists(inner, max_size=4).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda ways: f"(?:{'|'.join(ways)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "{0,}", "*?"])).map(
            lambda p: f"(?:{p[0]}){p[1]}"
        ),
    ),
    max_leaves=8,
)


@given(PATTERNS, st.lists(st.text("abc.-1", min_size=1, max_size=6), max_size=8))
def test_it_agrees_with_pythons_engine_where_both_speak(pattern, names):
    expected = re.compile(pattern)
    compiled = Pattern(pattern)
    for name in names:
        assert compiled.matches(name) == bool(expected.fullmatch(name)), (pattern, name)


@given(st.text(max_size=40))
def test_any_text_compiles_or_is_refused_and_nothing_else(text):
    with contextlib.suppress(InvalidPattern):
        Pattern(text).matches("topic-1")


@pytest.mark.parametrize("pattern", ["(a+)+b", "(a|aa)+b", "(a*)*b", "(.*)*x", "(a?){200}a{200}", "(.*a.{300})"])
def test_hostile_patterns_end_soon(pattern):
    began = time.process_time()
    names = ["a" * 249, "ab" * 124, *(f"a{n:0246}" for n in range(200))]
    with contextlib.suppress(InvalidPattern):
        Pattern(pattern).select(names)
    assert time.process_time() - began < 10  # a backtracking engine would need longer than the universe has


def test_ten_thousand_names_take_a_moment():
    names = [f"service-{n % 97}.events.{n}" for n in range(10_000)]
    began = time.process_time()
    matches = Pattern(r"service-[0-9]+\.events\..*7").select(names)
    assert len(matches) == 1000
    assert time.process_time() - began < 5


def test_the_characters_of_the_patterns_in_use_are_bounded():
    patterns = Patterns()
    for number in range(200):
        assert patterns.resolve(f"[{'a' * 30_000}]{number}", {f"a{number}": None}) == {f"a{number}"}
    assert sum(map(len, patterns._known)) == patterns._chars < 2 << 20
