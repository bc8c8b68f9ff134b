"""Sources in databases without a database: which ranges are read, and that each row is written once whatever dies."""

import random
from contextlib import nullcontext

import pytest

from klamm.model.errors import ConfigError
from klamm.pipeline.checkpoint_folder import LocalFolder
from klamm.pipeline.sql import SqlError, compile_text
from klamm.pipeline.sql.core.identity import compare, describe
from klamm.pipeline.sql.core.jdbc_cursors import INTEGER, TIMESTAMP, CursorRange, StablePositions, choose_width, literal
from klamm.pipeline.sql.core.secrets import expand, mask_secrets
from klamm.pipeline.sql.jdbc import JdbcError, JdbcPoller, driver_jars
from klamm.pipeline.sql.jdbc_positions import JdbcPositions

TEXT = """CREATE SOURCE orders (id BIGINT, name STRING) WITH (
  connector = 'jdbc', url = 'jdbc:some:thing', table = 'orders', cursor = 'id',
  user = 'ann', password = 'hush', batch_size = {batch}, delay = '{delay}'{more});"""


def node(batch=5, delay="0 seconds", more=""):
    return compile_text(TEXT.format(batch=batch, delay=delay, more=more)).node("orders")


@pytest.fixture
def chance():
    seed = random.randrange(1 << 30)
    print("seed", seed)
    return random.Random(seed)


def test_extents_hold_as_many_rows_as_fit_however_they_lie(chance):
    for _ in range(300):
        spread = chance.choice([10, 1000, 1 << 50])
        rows = sorted(chance.randrange(spread) for _ in range(chance.randrange(1, 80)))
        most, guess = chance.randrange(1, 30), chance.choice([1, 7, 1 << 60])
        start, counts, taken = 0, 0, []
        while rest := [row for row in rows if row >= start]:

            def count(width, rest=rest):
                nonlocal counts
                counts += 1
                return sum(position < rest[0] + width for position in rest)

            width, rows_in_width = choose_width(rest[0], rest[-1], most, guess, count)
            part = [position for position in rest if position < rest[0] + width]
            assert rows_in_width == len(part) >= 1
            assert len(part) <= most or len(set(part)) == 1
            taken += part
            start, guess = rest[0] + width, width
        assert taken == rows
        # For every range some estimates, then a bisection of up to 60 bits.
        assert counts < 70 * len(rows)


def test_positions_in_sql():
    assert CursorRange(INTEGER, None, 7).condition("id") == "id < 7"
    assert CursorRange(INTEGER, -3, 7).condition('"Id"') == '"Id" >= -3 AND "Id" < 7'
    assert literal(TIMESTAMP, 1_767_225_600_000_001) == "{ts '2026-01-01 00:00:00.000001'}"
    range_ = CursorRange(TIMESTAMP, 1, 2, 3)
    assert CursorRange.decode(range_.encode(), "here") == range_
    for broken in ("", "{}", '{"version": 2, "kind": "integer", "start": 1, "end": 2, "rows": 0}'):
        with pytest.raises(ConfigError, match="here is not a position"):
            CursorRange.decode(broken, "here")


def test_a_position_is_believed_once_it_was_passed_for_a_while():
    settled = StablePositions(5.0)
    assert settled.observe(0.0, 10) is None
    assert settled.observe(1.0, 12) is None
    assert settled.wait_s(1.0) == 4.0
    assert settled.observe(5.5, 30) == 10
    assert settled.observe(6.0, None) == 12
    assert settled.observe(10.4, 30) == 12
    assert settled.observe(10.5, 30) == 30
    assert settled.wait_s(11.0) == 0.0


class Crash(BaseException):
    """The process ends."""


class Table:
    """A table and the topic its rows go to, which takes every numbered write once; dies when told to."""

    def __init__(self, of, rows):
        self.node, self.kind = of, INTEGER
        self.stored = sorted(rows)
        self.topic, self.numbers = [], set()
        self.left = None

    def step(self):
        if self.left is not None:
            self.left -= 1
            if self.left < 0:
                raise Crash

    def bounds(self, start):
        self.step()
        positions = [position for position in self.stored if start is None or position >= start]
        return (positions[0], positions[-1]) if positions else None

    def count(self, start, width):
        return sum(start <= position < start + width for position in self.stored)

    def rows(self, wanted):
        self.step()
        return [
            position
            for position in self.stored
            if (wanted.start is None or position >= wanted.start) and position < wanted.end
        ]

    def save(self, rows, number):
        self.step()
        if number not in self.numbers:
            self.numbers.add(number)
            self.topic += rows
        self.step()

    def wrap_error(self, error):
        return JdbcError(str(error))

    def named_jobs(self, group):
        return nullcontext()

    def interrupt(self, group):
        pass


class Dying(LocalFolder):
    """A folder that dies with its process."""

    table = None

    def write(self, kind, name, text, **options):
        self.table.step()
        super().write(kind, name, text, **options)
        self.table.step()


def run_once(table, folder, once=True):
    """One life of a source, in this thread."""
    folder.table = table
    polling = JdbcPoller("orders", table, JdbcPositions(folder), table.save, once=once)
    polling._loop()
    return polling


def test_whatever_dies_each_row_is_written_once_and_in_order(tmp_path, chance):
    for turn in range(12):
        rows = [chance.randrange(60) for _ in range(chance.randrange(1, 40))]
        table = Table(node(batch=chance.choice([1, 4, 100])), rows)
        folder = Dying(str(tmp_path / str(turn)))
        lives = 0
        while True:
            table.left = chance.randrange(12)
            try:
                run_once(table, folder)
                break
            except Crash:
                lives += 1
                table.left = None
                top = max(table.stored)
                if lives < 20 and chance.random() < 0.5:
                    table.stored += [top + chance.randrange(1, 5) for _ in range(3)]
                    table.stored.sort()
        assert table.topic == table.stored
        table.left = None
        assert run_once(table, folder).lastProgress is None


def test_every_step_of_a_batch_can_be_the_last(tmp_path):
    died = 0
    for steps in range(40):
        table = Table(node(batch=2), [1, 2, 2, 3, 9])
        folder = Dying(str(tmp_path / str(steps)))
        table.left = steps
        try:
            run_once(table, folder)
        except Crash:
            died += 1
            table.left = None
            run_once(table, folder)
        assert table.topic == [1, 2, 2, 3, 9], steps
    assert 15 < died < 40


def test_only_what_is_newer_than_the_start_where_that_is_said(tmp_path):
    table = Table(node(more=", starting = 'latest'"), [1, 2, 3])
    folder = Dying(str(tmp_path))
    run_once(table, folder)
    assert table.topic == []
    table.stored += [3, 4, 5]
    run_once(table, folder)
    assert table.topic == [4, 5]


def test_the_start_of_an_empty_table_is_stored_too(tmp_path):
    for steps in range(6):
        table = Table(node(more=", starting = 'latest'"), [])
        folder = Dying(str(tmp_path / str(steps)))
        table.left = steps
        died = False
        try:
            run_once(table, folder)
        except Crash:
            died = True
        table.left, table.stored = None, [4, 5]
        run_once(table, folder)
        # Before the mark is there, the source has not begun: the next start is its first.
        assert table.topic == ([] if died and steps < 2 else [4, 5]), steps


def test_a_source_that_goes_on_is_watched_and_stopped_like_sparks_queries(tmp_path):
    table = Table(node(), [1, 2])
    folder = Dying(str(tmp_path))
    folder.table = table
    polling = JdbcPoller("orders", table, JdbcPositions(folder), table.save, once=False, interval_s=0.01).start()
    try:
        while polling.lastProgress is None:
            polling.awaitTermination(0.01)
        table.stored += [7]
        while len(table.topic) < 3:
            polling.awaitTermination(0.01)
        assert polling.isActive
        assert polling.exception() is None
    finally:
        polling.stop()
    assert not polling.isActive
    assert [report["numInputRows"] for report in polling.recentProgress] == [2, 1][: len(polling.recentProgress)]
    table.bounds = lambda start: 1 / 0
    failed = JdbcPoller("orders", table, JdbcPositions(folder), table.save, once=True).start()
    with pytest.raises(JdbcError, match="division"):
        failed.awaitTermination(60)
    assert isinstance(failed.exception(), JdbcError)


def test_old_positions_are_forgotten(tmp_path):
    positions = JdbcPositions(LocalFolder(str(tmp_path)))
    for number in range(130):
        positions.begin(number, CursorRange(INTEGER, number, number + 1))
        positions.mark_done(number)
    assert len(list((tmp_path / "offsets").iterdir())) == 100
    assert positions.last() == (129, CursorRange(INTEGER, 129, 130), True)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("connector = 'jdbc', table = 't', cursor = 'id'", "jdbc needs the database's address"),
        ("connector = 'jdbc', url = 'jdbc:x', cursor = 'id'", "either table = '...' or query"),
        (
            "connector = 'jdbc', url = 'jdbc:x', table = 't', query = 'q', cursor = 'id'",
            "either table = '...' or query",
        ),
        ("connector = 'jdbc', url = 'jdbc:x', table = 't'", "jdbc needs a cursor"),
        ("connector = 'jdbc', url = 'jdbc:x', table = 't', cursor = 'name'", "name is STRING; a cursor is"),
        ("connector = 'jdbc', url = 'http:x', table = 't', cursor = 'id'", "write the database's address"),
        (
            "connector = 'jdbc', url = 'jdbc:x', table = 't', cursor = 'id', path = 'x'",
            "path is an option of connector",
        ),
        (
            "connector = 'jdbc', url = 'jdbc:x', table = 't', cursor = 'id', driver_jar = 'x.jar'",
            "named by its class, too",
        ),
        ("connector = 'files', path = 'x', table = 't'", "table is an option of connector jdbc, not of files"),
        ("connector = 'files', path = 'x', password = ''", "password = '***': write something"),
    ],
)
def test_refusals(text, words):
    with pytest.raises(SqlError) as refused:
        compile_text(f"CREATE SOURCE s (id BIGINT, name STRING) WITH ({text});")
    assert words in str(refused.value)


def test_secrets_are_not_shown(monkeypatch):
    pipeline = compile_text(TEXT.format(batch=1, delay="1 s", more=""))
    assert "hush" not in str(describe(pipeline))
    with pytest.raises(SqlError) as refused:
        compile_text("CREATE SOURCE s (id INT) WITH (connector = 'jdbc', password = 'hush', urll = 'jdbc:x');")
    assert "urll" in str(refused.value)
    assert "hush" not in str(refused.value)
    assert expand("a${X}b${X}", {"X": "1"}, "url") == "a1b1"
    with pytest.raises(ConfigError, match=r"password takes .*NOWHERE.* export it"):
        expand("${NOWHERE}", {}, "password")
    masked = mask_secrets("no login hush at jdbc:pg://ann:secret@h/d?password=abc&x=1;PWD=q", ["hush"])
    assert masked == "no login *** at jdbc:pg://ann:***@h/d?password=***&x=1;PWD=***"


def test_what_a_change_means_for_positions():
    def described(**changes):
        text = TEXT.format(batch=1, delay="1 s", more="")
        for old, new in changes.items():
            text = text.replace(old, new)
        return compile_text(text)

    class Stored:
        queries = describe(described())

    def verdicts(pipeline):
        return [change.verdict for change in compare(Stored, pipeline)]

    assert verdicts(described(hush="other", ann="bob")) == ["same"]
    assert verdicts(described(thing="other")) == ["same"]
    assert verdicts(described(**{"cursor = 'id'": "cursor = 'nr'"})) == ["rebuild"]
    assert verdicts(described(**{"table = 'orders'": "table = 'more'"})) == ["rebuild"]
    assert verdicts(described(**{"name STRING": "name STRING, city STRING"})) == ["continues"]


def test_jars_of_drivers_join_those_that_are_named():
    pipeline = compile_text(
        TEXT.format(batch=1, delay="1 s", more=", driver = 'x.Y', driver_jar = 'pg.jar, other.jar'")
    )
    assert driver_jars(pipeline, {}) == {"spark.jars": "pg.jar,other.jar"}
    assert driver_jars(pipeline, {"spark.jars": "mine.jar"}) == {"spark.jars": "mine.jar,pg.jar,other.jar"}
    assert driver_jars(compile_text(TEXT.format(batch=1, delay="1 s", more="")), {"spark.jars": "x"}) == {}
