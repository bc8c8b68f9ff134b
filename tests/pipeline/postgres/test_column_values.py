"""Values of PostgreSQL as JSON has them."""

import pytest

from klamm.pipeline.postgres.core.column_values import ColumnValueError, TypeCatalog, json_value, text_value

CATALOG = TypeCatalog(elements={1007: 23, 1009: 25, 1231: 1700, 1115: 1114}, domains={90_001: 23, 90_002: 90_001})


@pytest.mark.parametrize(
    ("text", "oid", "value"),
    [
        (None, 23, None),
        ("t", 16, True),
        ("f", 16, False),
        ("-9223372036854775808", 20, -(2**63)),
        ("1.5", 701, 1.5),
        ("1e-07", 701, 1e-07),
        ("NaN", 701, "NaN"),
        ("-Infinity", 700, "-Infinity"),
        ("12345678901234567890.12", 1700, "12345678901234567890.12"),
        ("2026-01-02 03:04:05.678901", 1114, "2026-01-02T03:04:05.678901Z"),
        ("2026-01-02 03:04:05+00", 1184, "2026-01-02T03:04:05Z"),
        ("infinity", 1184, "infinity"),
        ("0044-03-15 00:00:00 BC", 1114, "0044-03-15 00:00:00 BC"),
        ("2026-01-02", 1082, "2026-01-02"),
        ("\\x00ff", 17, "AP8="),
        ('{"a": 1}', 3802, '{"a": 1}'),
        ("P1D", 1186, "P1D"),
        ("a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11", 2950, "a0eebc99-9c0b-4ef8-bb6d-6bb9bd380a11"),
        ("happy", 90_100, "happy"),
        ("5", 90_002, 5),
    ],
)
def test_scalars(text, oid, value):
    assert json_value(text, oid, CATALOG) == value


@pytest.mark.parametrize(
    ("text", "oid", "value"),
    [
        ("{}", 1007, []),
        ("{1,NULL,3}", 1007, [1, None, 3]),
        ("{{1,2},{3,4}}", 1007, [[1, 2], [3, 4]]),
        ("[0:1]={7,8}", 1007, [7, 8]),
        (
            '{a,"b c","d\\"e","f\\\\g","NULL",NULL,"","{x,y}"}',
            1009,
            ["a", "b c", 'd"e', "f\\g", "NULL", None, "", "{x,y}"],
        ),
        ("{1.10,2}", 1231, ["1.10", "2"]),
        ('{"2026-01-02 03:04:05"}', 1115, ["2026-01-02T03:04:05Z"]),
    ],
)
def test_arrays(text, oid, value):
    assert json_value(text, oid, CATALOG) == value


@pytest.mark.parametrize(
    ("text", "oid"), [("x", 23), ("yes", 16), ("ff", 17), ("{1", 1007), ("1,2", 1007), ("{1}}", 1007), ('{"a', 1009)]
)
def test_text_that_is_no_value_of_its_type(text, oid):
    with pytest.raises(ColumnValueError, match="no value of PostgreSQL's type"):
        json_value(text, oid, CATALOG)


@pytest.mark.parametrize(
    ("text", "oid"),
    [
        ("7", 90_002),
        ("\\x00ff", 17),
        ("2026-01-02T03:04:05.678901Z", 25),
        ("{1,NULL,3}", 1007),
        ("{{1,2},{3,4}}", 1007),
        ("{}", 1009),
        (r'{"a \"b\" \\c","NULL",NULL,"{x,y}"}', 1009),
        (r'{"\\x00ff",NULL}', 1001),
    ],
)
def test_a_value_is_written_as_postgresql_reads_it(text, oid):
    """The value of a key finds its row: the text need not be the same, but means the same."""
    catalog = TypeCatalog({**CATALOG.elements, 1001: 17}, CATALOG.domains)
    value = json_value(text, oid, catalog)
    assert json_value(text_value(value, oid, catalog), oid, catalog) == value
    assert text_value(value, oid, catalog).replace('"', "") == text.replace('"', "")


def test_a_catalog_whose_domains_form_a_cycle():
    assert json_value("5", 1, TypeCatalog(domains={1: 2, 2: 1})) == "5"
