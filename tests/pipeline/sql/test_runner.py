"""Keeping queries running, told with queries that are not Spark's: restarts, enough of them, stopping."""

import signal
import threading
import time

import pytest

from klamm.model.errors import ConfigError
from klamm.model.ids import TopicPartition
from klamm.pipeline.sql import SqlError, compile_text
from klamm.pipeline.sql.core import query_failures
from klamm.pipeline.sql.core.problems import SqlProblem
from klamm.pipeline.sql.runner import _signals
from klamm.pipeline.sql.state_folders import home_of, name_of
from klamm.pipeline.sql.status import ControlAction, Home
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


@pytest.mark.parametrize(
    ("loss", "names"),
    [
        ("a-b-0 was read up to 3, but its log start offset is 5", ["orders"]),
        ("topic a was deleted and recreated; its earlier records are lost", ["others"]),
        ("a-1 was deleted; a-b-0 is new, but its records before offset 2 are lost", ["others", "orders"]),
        ("c-0 was deleted", []),
    ],
)
def test_lost_records_name_the_statement_that_reads_them(loss, names):
    graph = [{"name": name, "topic": topic} for name, topic in (("orders", "a-b"), ("others", "a"), ("sink", None))]
    statements = query_failures.statements_read(graph, ("orders", "others", "sink"))
    text = f"x.DataLoss: {loss}; with failOnDataLoss=false the query goes on without them"
    failure = query_failures.lasting_failure(RuntimeError(), text, "bank", "q", statements)
    assert failure.reason == (f"{', '.join(names)}: {loss}" if names else loss)
    assert f"on_data_loss = 'continue' of {' and '.join(names) or 'the stream'} (or SET)" in failure.advice


def test_a_row_that_its_topic_does_not_take_is_not_sent_again_for_ever(home):
    text = (
        "Traceback (most recent call last):\n  a line\n"
        "klamm.client.errors.RecordTooLargeError: row 7 is larger than max.request.size=1048576\n SQLSTATE: 1"
    )
    with pytest.raises(ConfigError, match=r"q failed: a row of q .*: row 7 is larger than max\.request\.size=1048576$"):
        runner(home, Query("q", Handle(RuntimeError(text)))).run(once=True)
    failure = query_failures.lasting_failure(RuntimeError(), text, "bank", "orders", {"the.topic": "orders"})
    assert failure.reason.startswith("a row of orders is larger than topic the.topic takes: row 7")
    aborted = (
        "x.TransactionAbortableError: the transaction can only be aborted: MESSAGE_TOO_LARGE: the batch is large\n S"
    )
    assert query_failures.lasting_failure(RuntimeError(), aborted, "bank", "q").reason.endswith(
        "takes: the batch is large"
    )
    for way in ("klamm topic alter the.topic -c max.message.bytes=", "kafka.max.request.size", "WHERE", "bank orders"):
        assert way in failure.advice


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


def stop_once(home, state, *queries, **options):
    """Run over the current records, stop when the first query is in a state, and return the error."""
    errors = []

    def run():
        try:
            runner(home, *queries, **options).run(once=True)
        except ConfigError as error:
            errors.append(str(error))

    thread = threading.Thread(target=run)
    thread.start()
    try:
        while home.status()["queries"].get(queries[0].name, {}).get("state") != state and thread.is_alive():
            thread.join(0.01)
    finally:
        home.request_stop()
        thread.join(60)
    assert not thread.is_alive()
    return errors


def test_once_fails_when_it_is_stopped_while_a_query_fails(home):
    """Nothing was read: a job that looks at the exit code would go on without the rows."""
    failing = Query("q", *(Handle(OSError("away")) for _ in range(900)))
    errors = stop_once(home, "restarting", failing, Query("r", Handle(batch=0)), limit=1000)
    assert errors == ["q failed: away; it was stopped before it succeeded"]
    assert (home.status()["state"], home.status()["error"]) == ("failed", errors[0])


def test_once_fails_when_it_is_stopped_before_all_records_are_read(home):
    slow = Query("q", Handle(endless=True, batch=0))
    errors = stop_once(home, "running", slow, Query("r", Handle(batch=0)))
    assert errors == ["q was stopped before it had read the current records"]


def test_once_that_is_stopped_after_its_last_batch_has_succeeded(home):
    class LastBatch(Handle):
        """Ends by itself when the supervisor waits for it."""

        @property
        def status(self):
            self.isActive = not home.stop_requested()
            return {"isTriggerActive": True}

    assert stop_once(home, "running", Query("q", LastBatch(endless=True, batch=0))) == []
    assert home.status()["state"] == "stopped"
    failing = Query("q", LastBatch(OSError("away"), endless=True))
    home.clear_requests()
    assert stop_once(home, "running", failing) == ["q failed: away; it was stopped before it succeeded"]


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
        lags = {
            "q": Lag(
                12,
                3400,
                {TopicPartition("t", 10): 8, TopicPartition("s", 1): 4, TopicPartition("t", 9): 0},
                {TopicPartition("t", 10): 3400},
            )
        }

    running = runner(home, Query("q", Handle(batch=1)))
    running.lags = Watch()
    running.run(once=True)
    query_status = running.status()["queries"]["q"]
    assert (query_status["lag_records"], query_status["lag_ms"]) == (12, 3400)
    assert query_status["partition_lag_records"] == {"s": {"1": 4}, "t": {"9": 0, "10": 8}}
    assert list(query_status["partition_lag_records"]["t"]) == ["9", "10"]
    assert query_status["partition_lag_ms"] == {"t": {"10": 3400}}
    assert home.status()["queries"]["q"]["partition_lag_records"] == query_status["partition_lag_records"]


def test_the_lags_of_partitions_are_arranged_once_for_a_measurement(home):
    class Watch:
        lags = {"q": Lag(8, 0, {TopicPartition("t", 10): 8, TopicPartition("t", 9): 0})}

    running = runner(home, Query("q", Handle(batch=1)))
    running.lags = Watch()
    running._publish_status("running")
    first = running.status()["queries"]["q"]["partition_lag_records"]
    running._publish_status("running")
    assert running.status()["queries"]["q"]["partition_lag_records"] is first
    Watch.lags = {"q": Lag(0, 0, {TopicPartition("t", 10): 0, TopicPartition("t", 9): 0})}
    running._publish_status("running")
    assert running.status()["queries"]["q"]["partition_lag_records"] == {"t": {"9": 0, "10": 0}}


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


class Supervised:
    """A supervisor that runs in a thread, until the block ends."""

    def __init__(self, home, *queries, **options):
        self.home = home
        self.supervisor = runner(home, *queries, **options)
        self.error = None
        self._thread = threading.Thread(target=self._run)

    def _run(self):
        try:
            self.supervisor.run(once=False)
        except ConfigError as error:
            self.error = error

    def __enter__(self):
        self._thread.start()
        return self

    def __exit__(self, *_):
        self.supervisor.stop()
        self._thread.join(60)
        assert not self._thread.is_alive()

    def until(self, **states):
        """Wait until queries have states."""
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and self._thread.is_alive():
            queries = self.home.status()["queries"]
            if all(queries.get(name, {}).get("state") == state for name, state in states.items()):
                return queries
            time.sleep(0.01)
        raise AssertionError(self.home.status())

    def request(self, action, query=None):
        """Send a request; return its answer."""
        request_id = self.home.send_request(action, query)
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline:
            answer = self.home.status().get("requests", {}).get(request_id)
            if answer is not None:
                return answer
            time.sleep(0.01)
        raise AssertionError(self.home.status())


def test_a_query_that_stays_wrong_is_parked_and_the_others_run(home):
    bad = Query("bad", Handle(RuntimeError("[USER_RAISED_EXCEPTION] a record of s is bad")))
    with Supervised(home, bad, Query("good", Handle(endless=True, batch=1)), name="bank") as supervised:
        queries = supervised.until(bad="failed", good="running")
        assert "klamm pipeline restart bank bad" in queries["bad"]["advice"]
        assert home.status()["error"] == "bad failed: [USER_RAISED_EXCEPTION] a record of s is bad"
    assert "a record of s is bad" in str(supervised.error)
    assert home.status()["state"] == "failed"


def test_with_fail_fast_the_first_failed_query_ends_the_others(home):
    good = Handle(endless=True, batch=1)
    bad = Query("bad", Handle(RuntimeError("with failOnDataLoss=false the query goes on")))
    with pytest.raises(ConfigError, match="bad failed: with failOnDataLoss"):
        runner(home, Query("good", good), bad, fail_fast=True).run(once=False)
    assert not good.isActive


def test_the_process_ends_when_all_queries_have_failed(home):
    lost = "offsets are gone; with failOnDataLoss=false the query goes on without them"
    queries = [Query(name, Handle(RuntimeError(lost))) for name in ("a", "b")]
    with pytest.raises(ConfigError, match=r"a failed: .*\nb failed: "):
        runner(home, *queries).run(once=False)
    assert "--rebuild b" in home.status()["queries"]["b"]["advice"]


def test_without_a_limit_a_query_restarts_for_ever(home):
    query = Query("q", *(Handle(OSError("away")) for _ in range(12)), Handle(endless=True, batch=1))
    pauses = [query_failures.restart_pause_s(failures, 1.0) for failures in (1, 2, 3, 7, 5000)]
    assert pauses == [1.0, 2.0, 4.0, 60.0, 60.0]
    with Supervised(home, query, limit=None) as supervised:
        supervised.supervisor._first_pause_s = 1e-9
        assert supervised.until(q="running")["q"]["restarts"] == 12
    assert supervised.error is None


def test_a_paused_query_stays_off_over_a_restart_of_the_process_until_it_is_resumed(home):
    handle, other = Handle(endless=True, batch=1), Handle(endless=True, batch=1)
    with Supervised(home, Query("q", handle), Query("r", other)) as supervised:
        supervised.until(q="running", r="running")
        assert supervised.request(ControlAction.PAUSE, "q") == ""
        supervised.until(q="paused", r="running")
        assert handle.stopped_between_batches
    resumed = Handle(endless=True, batch=2)
    with Supervised(home, Query("q", resumed), Query("r", Handle(endless=True))) as supervised:
        supervised.until(q="paused", r="running")
        assert supervised.request(ControlAction.RESUME, "q") == ""
        supervised.until(q="running", r="running")
    assert home.read_paused() == frozenset()


def test_a_failed_query_starts_again_on_request(home):
    query = Query("q", Handle(RuntimeError("the Python of this executor lacks x")), Handle(endless=True, batch=1))
    with Supervised(home, query, Query("r", Handle(endless=True, batch=1))) as supervised:
        supervised.until(q="failed", r="running")
        assert supervised.request(ControlAction.PAUSE, "q") == "q has failed and does not run"
        assert supervised.request(ControlAction.RESTART, "q") == ""
        assert supervised.until(q="running")["q"]["advice"] is None
        assert supervised.request(ControlAction.RESTART, "qq") == "home has no query qq; did you mean q?"
    assert supervised.error is None


def test_restart_without_a_name_leaves_paused_queries_off(home):
    runs = [Handle(endless=True, batch=1), Handle(endless=True, batch=2)]
    home.keep_paused(["r"])
    query = Query("q", *runs)
    with Supervised(home, query, Query("r")) as supervised:
        supervised.until(q="running", r="paused")
        assert supervised.request(ControlAction.RESTART) == ""
        while len(query.started) < 2:
            supervised.until(r="paused")
        supervised.until(q="running", r="paused")
    assert not runs[0].isActive


def test_once_runs_side_by_side_what_does_not_read_from_each_other(home):
    nodes = compile_text(
        "CREATE STREAM s (a INT); CREATE STREAM a AS SELECT * FROM s; CREATE STREAM b AS SELECT * FROM s;"
        "CREATE VIEW v AS SELECT * FROM a; CREATE STREAM c AS SELECT * FROM v; CREATE STREAM d AS SELECT * FROM s;"
    )
    active, most, order = set(), [], []

    class Once(Handle):
        def __init__(self, name):
            super().__init__(batch=0)
            self.name, self.left = name, 5
            self.status_message = {}
            active.add(name)
            most.append(set(active))

        @property
        def status(self):
            return {"isTriggerActive": True}

        @property
        def isActive(self):  # noqa: N802 - Spark's name
            self.left -= 1
            if self.left <= 0 and self.name in active:
                active.remove(self.name)
                order.append(self.name)
            return self.left > 0

        @isActive.setter
        def isActive(self, value):  # noqa: N802
            pass

    class Lazy(Query):
        def start(self, *, once, trigger=None):
            assert once
            return Once(self.name)

    queries = [Lazy(name) for name in "abcd"]
    for query in queries:
        query.node = nodes.node(query.name)
    runner(home, *queries, parallel=2).run(once=True)
    assert {"a", "b"} in most
    assert max(len(names) for names in most) == 2
    assert not any({"a", "c"} <= names for names in most)
    assert order.index("a") < order.index("c")
    assert {query["state"] for query in home.status()["queries"].values()} == {"done"}


def test_once_a_failed_query_does_not_end_the_others(home):
    reports = []
    bad = Query("bad", Handle(RuntimeError("the Python of this executor lacks x")))
    with pytest.raises(ConfigError, match="bad failed"):
        runner(home, bad, Query("good", Handle(batch=0)), reports=reports).run(once=True)
    assert "good: done" in reports
