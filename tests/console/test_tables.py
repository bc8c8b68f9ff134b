"""Search, sort and pages of tables."""

from dataclasses import dataclass
from operator import attrgetter

import pytest

from klamm.console.core.tables import TableQuery, parse_table_query, select_page


@dataclass(frozen=True)
class Entry:
    name: str
    lag: int | None


COLUMNS = {"name": attrgetter("name"), "lag": attrgetter("lag")}
NAME = attrgetter("name")
ENTRIES = [Entry("orders", 5), Entry("payments", None), Entry("orders.dlq", 90), Entry("clicks", 5)]


def names(entries, **query):
    page = select_page(entries, TableQuery(**{"sort": "name", **query}), COLUMNS, NAME)
    return [entry.name for entry in page.rows]


def test_every_word_of_a_search_must_match():
    assert names(ENTRIES, search="ORD dlq") == ["orders.dlq"]
    assert names(ENTRIES, search="ord") == ["orders", "orders.dlq"]
    assert names(ENTRIES, search="nothing") == []


def test_equal_values_stay_in_the_order_of_names():
    assert names(ENTRIES, sort="lag") == ["clicks", "orders", "orders.dlq", "payments"]


def test_unknown_values_come_last_in_both_orders():
    assert names(ENTRIES, sort="-lag") == ["orders.dlq", "clicks", "orders", "payments"]


def test_a_page_beyond_the_end_is_the_last_page():
    entries = [Entry(f"topic-{i:03}", i) for i in range(120)]
    page = select_page(entries, TableQuery(sort="name", page=9), COLUMNS, NAME)
    assert (page.query.page, page.pages, page.first, page.last, page.matching) == (3, 3, 101, 120, 120)


def test_an_empty_table_has_one_page():
    page = select_page([], TableQuery(sort="name"), COLUMNS, NAME)
    assert (page.pages, page.first, page.last) == (1, 0, 0)


@pytest.mark.parametrize("sort", ["secret", "-secret", "__class__", ""])
def test_a_sort_by_something_else_is_the_default(sort):
    assert parse_table_query({"sort": [sort]}, COLUMNS, "-lag").sort == "-lag"


@pytest.mark.parametrize("text", ["-1", "0", "x", "1e9", "9" * 30, "²"])
def test_a_page_that_is_no_number_is_the_first(text):
    assert parse_table_query({"page": [text]}, COLUMNS, "name").page == 1


def test_links_keep_what_they_do_not_change():
    query = parse_table_query({"q": ["a b"], "page": ["3"], "internal": ["1"]}, COLUMNS, "name", ("internal",))
    assert query.link(page=4) == "?q=a+b&sort=name&page=4&internal=1"
    assert query.sort_link("lag") == "?q=a+b&sort=lag&internal=1"
    assert TableQuery(sort="lag").sort_link("lag") == "?sort=-lag"


def test_ten_thousand_rows_are_paged():
    entries = [Entry(f"topic-{i:05}", i) for i in range(10_000)]
    page = select_page(entries, TableQuery(search="topic-00", sort="-lag", size=25), COLUMNS, NAME)
    assert (page.matching, page.rows[0].name, len(page.rows)) == (1000, "topic-00999", 25)
