"""Keeping queries running, told with queries that are not Spark's: restarts, enough of them, stopping."""

import signal
import threading

import pytest

from klamm.model.errors import ConfigError
from klamm.pipeline.sql import SqlError, compile_text
from klamm.pipeline.sql.core.problems import SqlProblem
from klamm.pipeline.sql.runner import _signals, home_of, name_of
from klamm.pipeline.sql.status import Home
from klamm.pipeline.sql.supervisor import Supervisor
from klamm.pipeline.sql.topic_lag import Lag

NODE = compile_text("CREATE STREAM s (a INT); CREATE STREAM x AS SELECT * FROM s;").node("x")


class Handle:
    """A run of a query: ends at once, with an error or without, or goes on until it is stopped."""

    def __init__(self, error=None, *, endless=False, batch=None):
        self._error = error
        self.isActive = endless
        self.lastProgress = None if batch is None else {"batchId": batch, "numInputRows": 3}
        self.recentProgress = [] if batch is None else [self.lastProgress]
        self.polls = 0
        self.stopped_between_batches = None

    @property
    def status(self):
        self.polls += 1
        return {"isTriggerActive": self.polls < 3}

    def exception(self):
        return self._error

    def awaitTermination(self, _):  # noqa: N802 - Spark's name
        return True

    def stop(self):
        self.stopped_between_batches = self.polls >= 3
        self.isActive = False


class Query:
    def __init__(self, name, *runs):
        self.name = name
        self.node = NODE
        self.in_passes = False
        self.checkpoint = "nowhere"
        self.left = list(runs)
        self.started = []

    def start(self, *, once, trigger=None):
        result = self.left.pop(0)
        self.started.append((once, trigger))
        if isinstance(result, Exception):
            raise result
        return result


@pytest.fixture
def home(tmp_path):
    return Home(str(tmp_path / "home"))


def runner(home, *queries, limit=3, reports=None, **options):
    report = (lambda _: None) if reports is None else reports.append
    return Supervisor(list(queries), home, limit=limit, first_pause_s=0.001, report=report, **options)


def test_once_runs_queries_one_after_the_other(home):
    reports = []
    first, second = Query("first", Handle(batch=0)), Query("second", Handle(batch=4))
    runner(home, first, second, reports=reports, trigger="1 minute").run(once=True)
    assert reports == ["first: done", "second: done"]
    assert first.started == [(True, "1 minute")]
    status = home.status()
    assert status["state"] == "stopped"
    assert {name: query["batch"] for name, query in status["queries"].items()} == {"first": 0, "second": 4}


def test_a_query_that_fails_is_started_again_and_keeps_its_last_error(home):
    reports = []
    query = Query("q", Handle(OSError("away")), RuntimeError("not yet"), Handle(batch=0))
    runner(home, query, reports=reports).run(once=True)
    assert len(query.started) == 3
    assert ["away" in reports[0], "not yet" in reports[1], reports[2]] == [True, True, "q: done"]
    query_status = home.status()["queries"]["q"]
    assert (query_status["error"], query_status["error_gist"], query_status["restarts"], query_status["failures"]) == (
        "not yet",
        "not yet",
        2,
        0,
    )
    assert query_status["error_ms"] > 0


def test_enough_failures_in_a_row_end_the_pipeline(home):
    query = Query("q", *(Handle(OSError("away")) for _ in range(9)))
    with pytest.raises(ConfigError, match="q failed: away"):
        runner(home, query, limit=3).run(once=True)
    assert len(query.started) == 4
    assert (home.status()["state"], home.status()["error"]) == ("failed", "q failed: away")


def test_a_batch_that_went_well_ends_a_row_of_failures(home):
    runs = [Handle(OSError("away"), batch=number) for number in range(8)]
    query = Query("q", *runs, Handle(batch=8))
    runner(home, query, limit=1).run(once=True)
    assert len(query.started) == 9


def test_what_will_never_go_well_is_not_tried_again(home):
    query = Query("q", Handle(RuntimeError("[USER_RAISED_EXCEPTION] a record of s is bad")))
    with pytest.raises(ConfigError, match="a record of s is bad"):
        runner(home, query).run(once=True)
    assert home.status()["queries"]["q"]["bad_records"] == {"fail": 1}
    lacking = "Traceback (most recent call last):\nx.ConfigError: the Python of this executor, p, lacks q\n SQLSTATE: 1"
    with pytest.raises(ConfigError, match=r"q failed: the Python of this executor, p, lacks q$"):
        runner(home, Query("q", Handle(RuntimeError(lacking)))).run(once=True)
    text = compile_text("CREATE STREAM s (a INT);").source
    wrong = Query("q", SqlError(text, [SqlProblem(0, "no such column")]))
    with pytest.raises(SqlError, match="no such column"):
        runner(home, wrong).run(once=False)


def test_stopping_lets_the_batches_finish(home):
    handle = Handle(endless=True, batch=1)
    other = Handle(OSError("away"))
    again = Handle(endless=True)
    running = runner(home, Query("q", handle), Query("r", other, again))
    thread = threading.Thread(target=running.run, kwargs={"once": False})
    thread.start()
    try:
        while home.status()["queries"].get("q", {}).get("batch") != 1 and thread.is_alive():
            thread.join(0.01)
        home.request_stop()
    finally:
        home.request_stop()
        thread.join(60)
    assert not thread.is_alive()
    assert handle.stopped_between_batches
    assert home.status()["state"] == "stopped"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_the_first_signal_stops_after_the_batch_and_the_second_at_once(number):
    caught, stopped = [], []
    before = signal.signal(number, lambda *_: caught.append(number))
    try:
        with _signals(lambda: stopped.append(number)):
            signal.raise_signal(number)
            assert (stopped, caught) == ([number], [])
            signal.raise_signal(number)
            assert (stopped, caught) == ([number], [number])
        signal.raise_signal(number)
        assert (stopped, caught) == ([number], [number, number])
    finally:
        signal.signal(number, before)


def test_a_line_of_the_log_for_every_batch(home, caplog):
    caplog.set_level("INFO", logger="klamm.pipeline")
    running = runner(home, Query("q", Handle(OSError("away"), batch=7), Handle(batch=8)), log_batches=True)
    running.run(once=True)
    lines = [line for line in caplog.messages if "batch done" in line]
    assert [line.split(" rows_per_s")[0] for line in lines] == [
        f"batch done query=q batch={batch} rows=3" for batch in (7, 8)
    ]
    status = running.status()
    query_status = status["queries"]["q"]
    assert (status["state"], query_status["batches_total"], query_status["rows_total"]) == ("stopped", 2, 6)


def test_lags_of_the_cluster_win_over_those_of_the_last_batch(home):
    class Watch:
        lags = {"q": Lag(12, 3400)}

    running = runner(home, Query("q", Handle(batch=1)))
    running.lags = Watch()
    running.run(once=True)
    query_status = running.status()["queries"]["q"]
    assert (query_status["lag_records"], query_status["lag_ms"]) == (12, 3400)


def test_a_pipeline_is_called_after_its_file_unless_it_says_otherwise():
    text = "CREATE STREAM s (a INT);"
    assert name_of(compile_text(text, "some/bank.sql")) == "bank"
    assert name_of(compile_text("SET name = 'b2';" + text, "some/bank.sql")) == "b2"
    assert home_of(compile_text("SET checkpoint = 'here';" + text)).path == "here"


def test_a_query_that_reads_tables_too_runs_in_passes(home):
    joined = compile_text(
        "CREATE STREAM s (a INT); CREATE TABLE t (a INT) WITH (key = 'a');"
        "CREATE STREAM x AS SELECT s.a FROM s JOIN t ON s.a = t.a;"
    ).node("x")
    query = Query("q", Handle(batch=0), Handle(batch=1), Handle(endless=True, batch=2))
    query.node = joined
    query.in_passes = True
    thread = threading.Thread(target=runner(home, query).run, kwargs={"once": False})
    thread.start()
    try:
        while home.status()["queries"].get("q", {}).get("batch") != 2 and thread.is_alive():
            thread.join(0.01)
    finally:
        home.request_stop()
        thread.join(60)
    assert query.started == [(True, None)] * 3
