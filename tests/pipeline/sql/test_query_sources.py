"""What a SELECT reads, found without Spark."""

import pytest

from klamm.pipeline.sql.core.parser import parse
from klamm.pipeline.sql.core.query_sources import normalize_select, scan_select


def select(text):
    statements, problems = parse(f"CREATE STREAM x AS {text}")
    assert not problems
    return statements[0].select


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("SELECT * FROM a", ["a"]),
        ("SELECT * FROM a AS x, b y, `c d`", ["a", "b", "c d"]),
        ("SELECT * FROM a JOIN b USING (id) LEFT OUTER JOIN c ON a.id = c.id", ["a", "b", "c"]),
        ("SELECT * FROM (SELECT * FROM a) x JOIN (b JOIN c)", ["a", "b", "c"]),
        ("WITH p AS (SELECT * FROM a), q (n) AS (SELECT 1 FROM p) SELECT * FROM p, q, b", ["a", "b"]),
        ("SELECT * FROM a UNION ALL SELECT * FROM b", ["a", "b"]),
        ("SELECT * FROM a WHERE id IN (SELECT id FROM b) AND EXISTS (SELECT 1 FROM c)", ["a", "b", "c"]),
        ("SELECT extract(year FROM at), trim(BOTH 'x' FROM name) FROM a", ["a"]),
        ("SELECT x IS DISTINCT FROM y FROM a", ["a"]),
        ("SELECT x IS NOT DISTINCT FROM y FROM a", ["a"]),
        ("SELECT explode(xs) FROM a LATERAL VIEW explode(ys) t AS y", ["a"]),
        ("SELECT * FROM a, LATERAL (SELECT * FROM b WHERE b.id = a.id)", ["a", "b"]),
        ("SELECT * FROM range(5), a", ["a"]),
        ("SELECT * FROM a x (p, q) JOIN b", ["a", "b"]),
        ("SELECT * FROM VALUES (1, 2) AS t(a, b)", []),
        ("SELECT 'FROM b', `from` FROM a -- FROM c", ["a"]),
        ("FROM a SELECT *", ["a"]),
        ("FROM a |> WHERE x > 1 |> SELECT *", ["a"]),
        ("SELECT * FROM db.a", ["db.a"]),
        ("SELECT * FROM STREAM a WATERMARK at DELAY OF INTERVAL 1 SECOND", ["a"]),
        ("SELECT substring(x FROM 2) FROM a", ["a"]),
        ("SELECT (SELECT max(b.x) FROM b) FROM a", ["b", "a"]),
    ],
)
def test_names(text, names):
    assert list(scan_select(select(text)).names) == names


def test_places_are_those_of_the_file():
    text = "CREATE STREAM x AS SELECT *\n FROM orders"
    statements, _ = parse(text)
    (read,) = scan_select(statements[0].select).reads
    assert text[read.offset :] == "orders"


@pytest.mark.parametrize(
    ("text", "facts"),
    [
        ("SELECT a FROM s", set()),
        ("SELECT a, count(*) FROM s GROUP BY a", {"grouped"}),
        ("SELECT sum(x) FROM s", {"grouped"}),
        ("SELECT sum(x) OVER (PARTITION BY a) FROM s", set()),
        ("SELECT DISTINCT a FROM s", {"distinct"}),
        ("SELECT count(DISTINCT a) FROM s", {"grouped"}),
        ("SELECT * FROM s JOIN t USING (a)", {"joined"}),
        ("SELECT count(*) FROM s GROUP BY session_window(at, '1 minute')", {"grouped", "session"}),
        ("SELECT x IS DISTINCT FROM y FROM s", set()),
    ],
)
def test_what_must_be_remembered(text, facts):
    scan = scan_select(select(text))
    assert {name for name in ("grouped", "distinct", "joined", "session") if getattr(scan, name)} == facts


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("SELECT a, s.b, count(*) FROM s GROUP BY a, s.b", ("a", "b")),
        ("SELECT a FROM s GROUP BY a HAVING count(*) > 1", ("a",)),
        ("SELECT a FROM s GROUP BY upper(a)", None),
        ("SELECT a FROM s GROUP BY a, window(at, '1 minute')", None),
        ("SELECT a FROM s GROUP BY ALL", None),
        ("SELECT a FROM (SELECT b FROM s GROUP BY b)", ()),
    ],
)
def test_plain_names_of_a_group(text, names):
    assert scan_select(select(text)).group_names == names


def test_space_comments_and_case_do_not_change_a_select():
    assert normalize_select(select("select  A,\n 'x' from S -- c")) == normalize_select(
        select("SELECT a, /* d */ 'x' FROM s")
    )
    assert normalize_select(select("SELECT 'x' FROM s")) != normalize_select(select("SELECT 'X' FROM s"))
