"""Answers in every form, formats of records, and what a terminal must not be sent."""

import csv
import io
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.cli.output import default_format, printable, render, table_lines, yaml_lines
from klamm.cli.record_format import compile_format, format_data, from_shown, record_row, unescape

ROWS = [
    {"topic": "a", "size_bytes": 2048, "age_ms": 90_000, "isr": [1, 2], "note": None, "on": True},
    {"topic": "b,c", "size_bytes": 1, "age_ms": 5, "isr": [], "note": "x", "on": False},
]
RECORD = SimpleNamespace(
    topic="t", partition=1, offset=7, timestamp=1000, key=b"k", value=b"v\xff", headers=(("h", b"x"),)
)


def test_a_table_is_for_people():
    head, first, second = render(ROWS, "table")
    assert head.split() == ["TOPIC", "SIZE", "AGE", "ISR", "NOTE", "ON"]
    assert first.split() == ["a", "2", "KiB", "1m30s", "1,2", "-", "yes"]
    assert second.split() == ["b,c", "1", "B", "5ms", "-", "x", "no"]


def test_programs_get_raw_values():
    assert json.loads("".join(render(ROWS, "json"))) == ROWS
    assert [json.loads(line) for line in render(ROWS, "jsonl")] == ROWS
    cells = list(csv.reader(io.StringIO("\n".join(render(ROWS, "csv")))))
    assert cells == [
        ["topic", "size_bytes", "age_ms", "isr", "note", "on"],
        ["a", "2048", "90000", "1;2", "", "true"],
        ["b,c", "1", "5", "", "x", "false"],
    ]


def test_a_cell_of_csv_is_kept_as_it_is():
    odd = {"a": "one\ntwo\rthree\u2028four", "b": 'x"y'}
    assert list(csv.reader(io.StringIO("\n".join(render([odd], "csv")), newline=""))) == [list(odd), list(odd.values())]


def test_the_last_column_goes_on_below_itself_where_it_must():
    rows = [
        {"check": "disk", "found": "a sentence that is longer than the terminal is wide"},
        {"check": "x", "found": "y"},
    ]
    assert table_lines(rows, 30) == [
        "CHECK  FOUND", "disk   a sentence that is", "       longer than the", "       terminal is wide", "x      y",
    ]  # fmt: skip
    assert len(table_lines(rows, 80)) == len(table_lines(rows, 10)) == 3  # no need to, or no room for it


def test_yaml_line_by_line():
    assert yaml_lines([{"topic": "no", "isr": [1, 2], "own": {}}]) == [
        '- topic: "no"', "  isr:", "    - 1", "    - 2", "  own: {}",
    ]  # fmt: skip


def test_a_pipe_gets_lines_of_json():
    assert default_format() == "jsonl"  # pytest's standard output is no terminal


def test_escapes_reach_no_terminal():
    assert printable("a\x1b[2Jb\x07") == "a\\x1b[2Jb\\x07"
    assert "\x1b" not in "".join(render([{"topic": "x\x1b[31m"}], "table"))


def test_a_format_of_kcat():
    assert compile_format(r"%t %p %o %k %v %h %T %K %S %%\n\x41\t")(RECORD) == b"t 1 7 k v\xff h=x 1000 1 2 %\nA\t"
    bare = SimpleNamespace(**{**vars(RECORD), "key": None, "value": None, "headers": ()})
    assert compile_format("%k|%v|%s|%K|%S|%h")(bare) == b"|||-1|-1|"
    with pytest.raises(ValueError, match="%x is not known"):
        compile_format("%x")
    assert unescape(r"a\tb%k") == b"a\tb%k"


def test_records_go_out_and_come_back():
    row = record_row(RECORD)
    assert (row["key"], row["value"]) == ("k", {"base64": "dv8="})
    assert format_data(b'{"a": 1}', "json") == {"a": 1}
    assert format_data(b"\x01", "hex") == "01"


@given(st.one_of(st.none(), st.binary(max_size=50)))
def test_any_bytes_come_back_the_same(data):
    assert from_shown(json.loads(json.dumps(format_data(data, "text")))) == data
