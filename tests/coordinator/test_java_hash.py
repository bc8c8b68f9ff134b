"""Hashes of group ids, and which of them are kept."""

import pytest

from klamm.coordinator.core.java_hash import NAME_CHARS_MAX, _cached_hash, non_negative_hash


@pytest.mark.parametrize(
    ("text", "expected"),
    [("", 0), ("orders", 1008770331), ("polygenelubricants", 0), ("grüße", 98768023), ("😀", 1772899)],
)
def test_it_is_that_of_java(text, expected):
    assert non_negative_hash(text) == expected


def test_hashes_of_long_names_are_not_kept():
    """Clients without rights look for coordinators of any group id; 8,192 of 32 KB would be 256 MB."""
    _cached_hash.cache_clear()
    assert non_negative_hash("x" * NAME_CHARS_MAX) != non_negative_hash("x" * (NAME_CHARS_MAX + 1))
    assert _cached_hash.cache_info().currsize == 1
