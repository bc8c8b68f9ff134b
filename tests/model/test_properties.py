"""Java's .properties text is read as Java reads it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.model.errors import ConfigError
from klamm.model.properties import Property, format_properties, parse_properties


def pairs(text: str) -> list[tuple[str, str]]:
    return [(entry.key, entry.value) for entry in parse_properties(text)]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a=1", [("a", "1")]),
        ("a:1", [("a", "1")]),
        ("a 1", [("a", "1")]),
        ("a\t=\t1", [("a", "1")]),
        ("  a = 1  ", [("a", "1  ")]),
        ("a==1", [("a", "=1")]),
        ("a = : 1", [("a", ": 1")]),
        ("a", [("a", "")]),
        ("a=", [("a", "")]),
        ("=1", [("", "1")]),
        ("# a=1\n! b=2\n\n \t\nc=3", [("c", "3")]),
        ("a=1\r\nb=2\rc=3\n", [("a", "1"), ("b", "2"), ("c", "3")]),
        ("a=1,\\\n   2,\\\n\t3", [("a", "1,2,3")]),
        ("a=1\\\\\nb=2", [("a", "1\\"), ("b", "2")]),
        ("a=1\\\n# not a comment", [("a", "1# not a comment")]),
        ("a=1\\\n\nb=2", [("a", "1"), ("b", "2")]),
        ("a=1\\", [("a", "1")]),
        ("a\\=b=c", [("a=b", "c")]),
        ("a\\ b\\:c : d", [("a b:c", "d")]),
        ("a=\\t\\n\\r\\f\\q\\\\", [("a", "\t\n\r\fq\\")]),
        ("a=\\u0041\\u00e9", [("a", "Aé")]),
        ("a=\\ud83d\\ude00", [("a", "😀")]),
        ("a=\\ x", [("a", " x")]),
        ("# comment \\\na=1", [("a", "1")]),
    ],
)
def test_text_is_read_as_java_reads_it(text, expected):
    assert pairs(text) == expected


def test_every_entry_knows_the_line_it_begins_on():
    entries = parse_properties("# one\n\na=1\\\n  2\nb=3")
    assert entries == [Property(3, "a", "12"), Property(5, "b", "3")]


@pytest.mark.parametrize("text", ["a=1\nb=\\u12", "a=1\nb=\\uxyzw"])
def test_a_broken_escape_is_named_by_its_line(text):
    with pytest.raises(ConfigError, match=r"line 2: \\u must be followed by four"):
        parse_properties(text)


@given(
    st.dictionaries(
        st.text(st.characters(exclude_categories=["Cs"]), min_size=1), st.text(st.characters(exclude_categories=["Cs"]))
    )
)
def test_what_is_written_is_read_back(values):
    text = format_properties(values)
    assert dict(pairs(text)) == values
    assert text.isascii()


@given(st.text())
def test_any_text_is_read_or_refused_and_nothing_else(text):
    try:
        parse_properties(text)
    except ConfigError as error:
        assert "line" in str(error)  # noqa: PT017
