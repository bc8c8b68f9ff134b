"""Durations, sizes, times and settings as people write them, and back."""

import click
import pytest

from klamm.cli.setting_syntax import parse_setting, setting_name, to_person
from klamm.model.units import (
    format_duration,
    format_size,
    format_time,
    parse_duration_ms,
    parse_size_bytes,
    parse_time_ms,
)

NOW = 1_790_000_000_000


@pytest.mark.parametrize(
    ("text", "ms"),
    [("500ms", 500), ("90s", 90_000), ("2h", 7_200_000), ("7d", 604_800_000), ("1d12h", 129_600_000),
     ("1.5h", 5_400_000),
     ("42", 42), ("forever", -1), (" 3 min ", 180_000), ("2w", 1_209_600_000)],
)  # fmt: skip
def test_durations(text, ms):
    assert parse_duration_ms(text) == ms


@pytest.mark.parametrize(
    ("text", "size"),
    [("1024", 1024), ("1KiB", 1024), ("1k", 1024), ("1kB", 1000), ("1.2 GiB", 1_288_490_189), ("10MiB", 10 << 20),
     ("-1", -1), ("unlimited", -1)],
)  # fmt: skip
def test_sizes(text, size):
    assert parse_size_bytes(text) == size


@pytest.mark.parametrize("text", ["", "h", "2 parsecs", "1h2", "-3h", "1e9", "MiB"])
def test_what_is_none_is_said(text):
    with pytest.raises(ValueError, match="is no duration"):
        parse_duration_ms(text)
    with pytest.raises(ValueError, match="is no size"):
        parse_size_bytes(text)


def test_times():
    assert parse_time_ms("now", NOW) == NOW
    assert parse_time_ms("2h", NOW) == NOW - 7_200_000
    assert parse_time_ms("2h ago", NOW) == NOW - 7_200_000
    assert parse_time_ms("-2h", NOW) == NOW - 7_200_000
    assert parse_time_ms("2026-05-01T12:00:00Z", NOW) == 1_777_636_800_000
    assert parse_time_ms("1777636800", NOW) == 1_777_636_800_000
    assert parse_time_ms("1777636800123", NOW) == 1_777_636_800_123
    # Negative numbers are the ends of a log: a reset to a time before 1970 must not skip everything.
    assert parse_time_ms("9000000h ago", NOW) == parse_time_ms("1969-12-31T23:59:59.999Z", NOW) == 0
    with pytest.raises(ValueError, match="is no time"):
        parse_time_ms("yesterday-ish", NOW)
    with pytest.raises(ValueError, match="at most 19 digits"):
        parse_time_ms("9" * 23, NOW)


def test_there_and_back():
    assert [format_duration(ms) for ms in (12, 1500, 90_000, 604_800_000, 5_400_000, -1, 2**63 - 1)] == [
        "12ms", "1.5s", "1m30s", "7d", "1h30m", "forever", "forever",
    ]  # fmt: skip
    assert [format_size(size) for size in (0, 512, 1024, 1_288_490_189, 150 << 20, -1)] == [
        "0 B", "512 B", "1 KiB", "1.2 GiB", "150 MiB", "unlimited",
    ]  # fmt: skip
    assert format_time(-1) == "-"


def test_settings_take_units_and_short_names():
    assert parse_setting("retention=7d") == ("retention.ms", "604800000")
    assert parse_setting("retention=10GiB") == ("retention.bytes", str(10 << 30))
    assert parse_setting("retention.ms=604800000") == ("retention.ms", "604800000")
    assert parse_setting("segment.bytes=64MiB") == ("segment.bytes", str(64 << 20))
    assert parse_setting("cleanup=compact") == ("cleanup.policy", "compact")
    assert parse_setting("retention.ms=-1") == ("retention.ms", "-1")
    assert setting_name("retention") == "retention.ms"
    assert to_person("retention.ms", "604800000") == "7d"
    assert to_person("cleanup.policy", "compact") == "compact"
    for wrong in ("retention", "retention=7", "retention.ms=soon", "=x"):
        with pytest.raises(click.UsageError):
            parse_setting(wrong)
