"""Search, sort and pages of a list, as the query of its URL says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Generic, TypeVar
from urllib.parse import urlencode

Row = TypeVar("Row")

PAGE_SIZES: Final = (25, 50, 100, 250)
SEARCH_CHARS_MAX: Final = 200
SortKey = Callable[[Any], Any]


@dataclass(frozen=True, slots=True)
class TableQuery:
    """What a table shows: `sort` is a column, with a minus in front for the largest first."""

    search: str = ""
    sort: str = ""
    page: int = 1
    size: int = 50
    extra: tuple[tuple[str, str], ...] = ()
    """Other parameters of the page, such as ?internal=1, kept in its links."""

    def link(self, **changes: Any) -> str:
        """Return the query of a URL with some parameters changed; those with their default are left out."""
        query = replace(self, **changes)
        parts = [
            ("q", query.search),
            ("sort", query.sort),
            ("page", "" if query.page == 1 else str(query.page)),
            ("size", "" if query.size == 50 else str(query.size)),
            *query.extra,
        ]
        return "?" + urlencode([(name, value) for name, value in parts if value])

    def sort_link(self, column: str) -> str:
        """Return the link of a column's head: numbers first by their largest, again for the other order."""
        return self.link(sort=f"-{column}" if self.sort == column else column, page=1)

    def direction(self, column: str) -> str:
        """Return the value of aria-sort of a column."""
        if self.sort == column:
            return "ascending"
        return "descending" if self.sort == f"-{column}" else "none"


@dataclass(frozen=True, slots=True)
class TablePage(Generic[Row]):
    """One page of a table."""

    rows: Sequence[Row]
    query: TableQuery
    matching: int
    """Rows that the search matches, on all pages."""
    total: int

    @property
    def pages(self) -> int:
        """How many pages there are, at least one."""
        return max((self.matching + self.query.size - 1) // self.query.size, 1)

    @property
    def first(self) -> int:
        """The number of the first row, from 1; 0 when there is none."""
        return (self.query.page - 1) * self.query.size + 1 if self.rows else 0

    @property
    def last(self) -> int:
        """The number of the last row."""
        return self.first + len(self.rows) - 1 if self.rows else 0


def parse_table_query(
    query: Mapping[str, Sequence[str]], columns: Mapping[str, SortKey], default: str, extra: Sequence[str] = ()
) -> TableQuery:
    """Parse the query of a URL; what is no column, page or size falls back to the default, since links get old."""
    sort = _text(query, "sort")
    if sort.removeprefix("-") not in columns:
        sort = default
    size = _number(query, "size", 50)
    return TableQuery(
        _text(query, "q")[:SEARCH_CHARS_MAX],
        sort,
        max(_number(query, "page", 1), 1),
        size if size in PAGE_SIZES else 50,
        tuple((name, value) for name in extra if (value := _text(query, name))),
    )


def select_page(
    rows: Sequence[Row], query: TableQuery, columns: Mapping[str, SortKey], name: SortKey
) -> TablePage[Row]:
    """Return the rows of a page: those whose name contains every word of the search, in the order of a column.

    Rows without a value in that column come last in either order, so that unknown lags do not hide known ones.
    """
    matching = _search(rows, query, name)
    column = columns[query.sort.removeprefix("-")]
    descending = query.sort.startswith("-")
    # By name first: rows with equal values keep this order, as sorting is stable.
    matching.sort(key=name)
    known = [row for row in matching if column(row) is not None]
    known.sort(key=column, reverse=descending)
    return _cut(known + [row for row in matching if column(row) is None], query, len(rows))


def search_page(rows: Sequence[Row], query: TableQuery, name: SortKey) -> TablePage[Row]:
    """Return the rows of a page in the order that they have."""
    return _cut(_search(rows, query, name), query, len(rows))


def _search(rows: Sequence[Row], query: TableQuery, name: SortKey) -> list[Row]:
    words = query.search.lower().split()
    return [row for row in rows if all(word in name(row).lower() for word in words)] if words else list(rows)


def _cut(matching: Sequence[Row], query: TableQuery, total: int) -> TablePage[Row]:
    pages = max((len(matching) + query.size - 1) // query.size, 1)
    # A link to page 9 of a list that became shorter shows its last page.
    query = replace(query, page=min(query.page, pages))
    begin = (query.page - 1) * query.size
    return TablePage(matching[begin : begin + query.size], query, len(matching), total)


def _text(query: Mapping[str, Sequence[str]], name: str) -> str:
    values = query.get(name)
    return values[0].strip() if values else ""


def _number(query: Mapping[str, Sequence[str]], name: str, default: int) -> int:
    text = _text(query, name)
    return int(text) if text.isascii() and text.isdecimal() and len(text) < 9 else default
