"""Consumer instances expire when they are idle, belong to one owner, and are limited in number."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from klamm.http.refusals import HttpRefusal
from klamm.rest.core.instance_table import InstanceTable


def code_of(call, *arguments):
    with pytest.raises(HttpRefusal) as refusal:
        call(*arguments)
    return refusal.value.error_code


def test_names_are_taken_once_per_group():
    table = InstanceTable(10, 100)
    entry = table.add("g", "i", "User:a", object(), 0)
    assert code_of(table.add, "g", "i", "User:b", object(), 0) == 40902
    table.add("h", "i", "User:b", object(), 0)
    assert table.find("g", "i", "User:a") is entry
    assert code_of(table.find, "g", "i", "User:b") == 40403
    assert code_of(table.find, "g", "j", "User:a") == 40403
    assert table.remove(entry)
    assert not table.remove(entry)
    assert code_of(table.find, "g", "i", "User:a") == 40403


def test_a_flood_is_stopped():
    table = InstanceTable(3, 100)
    for number in range(3):
        table.add("g", str(number), "", object(), 0)
    assert code_of(table.add, "g", "3", "", object(), 0) == 42901
    assert len(table.remove_expired(100)) == 3
    table.add("g", "3", "", object(), 100)


def test_an_instance_in_use_does_not_expire():
    table = InstanceTable(3, 100)
    entry = table.add("g", "i", "", object(), 0)
    table.begin_use(entry)
    table.begin_use(entry)
    assert table.remove_expired(1000) == []
    table.end_use(entry, 1000)
    assert table.remove_expired(2000) == []
    table.end_use(entry, 1500)
    assert table.remove_expired(1599) == []
    assert table.remove_expired(1600) == [entry]


@given(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 30)), max_size=30))
def test_an_instance_lives_as_long_as_it_is_used(steps):
    """Every step uses an instance after some time; a model that looks at times only agrees."""
    table, now, used = InstanceTable(10, 50), 0, {}
    for name, pause in steps:
        now += pause
        expired = {entry.name for entry in table.remove_expired(now)}
        assert expired == {known for known, at in used.items() if now - at >= 50}
        used = {known: at for known, at in used.items() if known not in expired}
        if name not in used:
            table.add("g", name, "", None, now)
        entry = table.find("g", name, "")
        table.begin_use(entry)
        table.end_use(entry, now)
        used[name] = now
        assert len(table) == len(used)
