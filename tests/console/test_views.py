"""Numbers, charts, records and settings as pages show them."""

import re

import pytest

from klamm.client.admin.config_types import ConfigEntry
from klamm.client.types import Record
from klamm.console.core.charts import ChartPoint, draw_chart, draw_sparkline, value_ticks
from klamm.console.core.commands import CommandTarget, consume_command, create_command
from klamm.console.core.config_rows import make_config_row
from klamm.console.core.numbers import format_age, format_count, format_rate, format_short
from klamm.console.core.record_views import (
    dump_hex,
    mask_header,
    mask_key,
    mask_value,
    parse_headers,
    view_record,
    view_value,
)
from klamm.model.config_sources import ConfigSource, ConfigSynonym


@pytest.mark.parametrize(
    ("value", "text"),
    [(0, "0"), (0.04, "0.04"), (7.25, "7.2"), (950, "950"), (999.6, "1 k"), (12_345, "12.3 k"), (4.5e9, "4.5 G")],
)
def test_short_numbers_have_three_digits(value, text):
    assert format_short(value) == text


def test_unknown_numbers_are_a_dash():
    assert {format_count(None), format_short(None), format_rate(None), format_age(None)} == {"\N{EN DASH}"}


@pytest.mark.parametrize(
    ("ms", "text"), [(0, "now"), (12_000, "12 s"), (200_000, "3 min"), (7_300_000, "2 h"), (3 * 86_400_000, "3 d")]
)
def test_ages(ms, text):
    assert format_age(ms) == text


@pytest.mark.parametrize("top", [0, 0.003, 0.7, 1, 3, 9.99, 10, 123, 4.2e6])
def test_ticks_reach_the_top_with_few_steps(top):
    ticks = value_ticks(top)
    assert ticks[0] == 0
    assert ticks[-1] >= top
    assert 2 <= len(ticks) <= 6


def test_a_chart_leaves_gaps_where_there_was_no_sample():
    points = [ChartPoint(0, 1.0), ChartPoint(60_000, 2.0), ChartPoint(120_000, None), ChartPoint(180_000, 3.0)]
    svg = draw_chart(points, "rate", 0, 240_000)
    line = re.search(r'class="line" d="([^"]+)"', svg)[1]
    assert line.count("M") == 2
    assert "2 · " not in svg
    assert ">00:04<" in svg


def test_a_chart_escapes_its_label():
    assert "<script>" not in draw_chart([], '"><script>', 0, 1)
    assert "<script>" not in draw_sparkline([1.0], '"><script>')


def test_a_chart_without_samples_says_so():
    assert "no samples yet" in draw_chart([ChartPoint(0, None)], "rate", 0, 1)


@pytest.mark.parametrize(
    ("data", "kind", "text"),
    [
        (None, "null", "null"),
        (b"", "empty", ""),
        (b'{"a": [1, 2]}', "json", '{"a": [1, 2]}'),
        (b"12", "text", "12"),
        ("größe\nzwei".encode(), "text", "größe zwei"),
        (b"\x00\x01\xff", "binary", "00 01 ff"),
        (b"a\x00b", "binary", "61 00 62"),
        (b"[" * 100_000, "text", "[" * 239 + "…"),
    ],
)
def test_values_are_recognised(data, kind, text):
    view = view_value(data)
    assert (view.kind, view.text) == (kind, text)


def test_binary_values_may_name_a_schema():
    assert view_value(b"\x00\x00\x00\x00\x2a\xff\xfe").schema_id == 42


def test_a_hex_dump_is_that_of_hexdump():
    assert dump_hex(b"Klamm console\n\xff") == (
        "00000000  4b 6c 61 6d 6d 20 63 6f  6e 73 6f 6c 65 0a ff     |Klamm console..|"
    )


def test_large_values_are_cut():
    view = view_value(b"x" * 1_000_000)
    assert view.cut
    assert (view.size, len(view.full)) == (1_000_000, 65_536)


def test_a_record_shows_its_headers():
    row = view_record(Record("orders", 1, 7, 1000, b"k", b"v", (("trace", b"4711"), ("none", None))))
    assert [(name, header.text) for name, header in row.headers] == [("trace", "4711"), ("none", "null")]


def test_masked_fields_are_gone_from_the_bytes():
    value = b'{"card": {"number": "4111"}, "items": [{"pin": 1, "sku": "a"}], "total": 3}'
    masked = mask_value(value, [("card", "number"), ("items", "pin")])
    assert b"4111" not in masked
    assert masked == b'{"card": {"number": "****"}, "items": [{"pin": "****", "sku": "a"}], "total": 3}'


def test_a_masked_topic_hides_values_that_are_not_json():
    assert mask_value(b"card 4111", [("card",)]) == b"****"
    assert mask_value(b"card 4111", []) == b"card 4111"
    assert mask_value(None, [("card",)]) is None


@pytest.mark.parametrize(
    ("path", "masked"),
    [
        ("*.password", b'{"password": 1, "a": {"password": "****", "b": [{"password": 3}]}}'),
        ("**.password", b'{"password": "****", "a": {"password": "****", "b": [{"password": "****"}]}}'),
        ("a.**.password", b'{"password": 1, "a": {"password": "****", "b": [{"password": "****"}]}}'),
        ("**.b.password", b'{"password": 1, "a": {"password": 2, "b": [{"password": "****"}]}}'),
        ("password", b'{"password": "****", "a": {"password": 2, "b": [{"password": 3}]}}'),
    ],
)
def test_one_star_is_one_name_and_two_are_any_number(path, masked):
    value = b'{"password": 1, "a": {"password": 2, "b": [{"password": 3}]}}'
    assert mask_value(value, [path.split(".")]) == masked


def test_a_value_that_is_nested_too_deep_to_be_masked_raises_nothing():
    for depth in (500, 900):
        value = b"[" * depth + b"]" * depth
        assert mask_value(value, [("**", "password")]) in (b"****", value)


@pytest.mark.parametrize(
    ("key", "masked"),
    [
        (None, None),
        (b"customer-3", b"customer-3"),
        (b"4711", b"4711"),
        (b'{"card": {"number": "4111"}}', b'{"card": {"number": "****"}}'),
        (b"\x00\x00\x00\x00\x01secret", b"****"),
    ],
)
def test_masks_apply_to_keys(key, masked):
    assert mask_key(key, [("card", "number")]) == masked
    assert mask_key(key, []) == key


@pytest.mark.parametrize(
    ("name", "data", "masked"),
    [
        ("token", b"secret", b"****"),
        ("user.token", b"secret", b"****"),
        ("deep", b"secret", b"****"),
        ("trace", b"4711", b"4711"),
        ("trace", None, None),
        ("context", b'{"token": "secret"}', b'{"token": "****"}'),
        ("trace", b"\x00\xff", b"\x00\xff"),
    ],
)
def test_masks_apply_to_headers_by_name(name, data, masked):
    assert mask_header(name, data, [("token",), ("user", "token"), ("**", "deep")]) == masked


def test_headers_of_the_form():
    assert parse_headers("trace: 4:7\n\nempty:") == [("trace", b"4:7"), ("empty", b"")]
    with pytest.raises(ValueError, match="line 2"):
        parse_headers("a: b\nno colon")


def test_a_setting_shows_its_value_with_units_and_what_it_would_be_without():
    entry = ConfigEntry(
        "retention.ms",
        "3600000",
        ConfigSource.DYNAMIC_TOPIC_CONFIG,
        synonyms=(
            ConfigSynonym("retention.ms", "3600000", ConfigSource.DYNAMIC_TOPIC_CONFIG),
            ConfigSynonym("log.retention.ms", "604800000", ConfigSource.DEFAULT_CONFIG),
        ),
    )
    row = make_config_row(entry)
    assert (row.shown, row.default, row.is_own) == ("1h (3600000)", "7d (604800000)", True)


def test_secrets_are_hidden():
    row = make_config_row(ConfigEntry("ssl.key.password", "hunter2", ConfigSource.STATIC_BROKER_CONFIG, sensitive=True))
    assert "hunter2" not in repr(row)


def test_commands_are_quoted():
    target = CommandTarget("prod", "a:9092")
    assert consume_command(target, "orders", partition=1, start="5", count=2, where='key == "a b"') == (
        "klamm consume orders -p 1 --from 5 -n 2 --where 'key == \"a b\"' --ctx prod"
    )
    assert create_command(CommandTarget(None, "a:9092"), "x", 3, None, {"cleanup.policy": "compact"}) == (
        "klamm topic create x -p 3 -c cleanup.policy=compact -b a:9092"
    )
