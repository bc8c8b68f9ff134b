"""Pipelines by their status files: rows, graph, requests, dead letters. No Spark: a run is played by the test."""

import contextlib
import subprocess
import sys
import threading
import time

import pytest

from klamm.client import TopicPartition
from klamm.console.core.pipeline_graphs import arrange, draw_graph
from klamm.console.core.pipeline_rows import GraphStatement, make_pipeline_row, make_remote_row
from klamm.pipeline.sql.core.identity import QueryIdentity
from klamm.pipeline.sql.core.pipeline_record import PipelineRecord
from klamm.pipeline.sql.known_homes import cluster_folder, data_root
from klamm.pipeline.sql.pipeline_registry import TOPIC
from klamm.pipeline.sql.status import Home
from klamm.testing import unique

WAIT_S = 60


def statement(name, *reads, kind="stream", **more):
    return {"name": name, "kind": kind, "reads": list(reads), "topic": name, "runs": bool(reads), **more}


def make_status(state="running", graph=(), **queries):
    return {
        "state": state,
        "pid": 4711,
        "started_ms": 1000,
        "updated_ms": 2000,
        "error": None,
        "graph": list(graph),
        "queries": queries,
        "requests": {},
    }


def wait_for_page(visit, path, text):
    """Return a page when it shows what the console's reader has read meanwhile."""
    deadline_s = time.monotonic() + WAIT_S
    while text not in (page := visit.client.get(path).text):
        assert time.monotonic() < deadline_s, page
        time.sleep(0.05)
    return page


# Rows


def test_a_row_sums_its_queries():
    status = make_status(
        a={"state": "running", "rows_per_s": 10.5, "lag_records": 3, "lag_ms": 100, "late_rows": 2},
        b={"state": "failed", "rows_per_s": 1, "lag_ms": 900, "bad_records": {"x": 4, "y": 1}, "error_gist": "boom"},
    )
    row = make_pipeline_row("bank", "/state", status)
    assert (row.rows_per_s, row.lag_records, row.lag_ms, row.late_rows, row.bad_records) == (11.5, 3, 900, 2, 5)
    assert [query.name for query in row.failed] == ["b"]
    assert row.last_error == "b: boom"
    assert row.is_alive


@pytest.mark.parametrize(
    "status",
    [
        {},
        {"state": 3, "queries": [], "graph": "x", "pid": "y"},
        {"state": "running", "queries": {"a": None, "b": {"rows_per_s": "fast", "bad_records": 7, "waits_for": "z"}}},
        {"state": "running", "graph": [None, {}, {"name": "a", "reads": None}], "queries": {}},
    ],
)
def test_a_status_of_any_form_makes_a_row(status):
    row = make_pipeline_row("bank", "/state", status)
    assert row.rows_per_s is None
    draw_graph(row, "/c/test")


def test_the_newest_error_is_shown():
    status = make_status(a={"error": "old", "error_ms": 5}, b={"error": "new", "error_ms": 9}, c={"state": "running"})
    assert make_pipeline_row("bank", "", status).last_error == "b: new"


def test_a_remote_pipeline_has_only_its_place():
    row = make_remote_row("bank", "host:/state", alive=False, pid=None, heartbeat_ms=None)
    assert (row.state, row.is_here, row.is_alive, row.queries) == ("not running", False, False, ())


# The graph


def test_a_statement_is_right_of_what_it_reads():
    statements = [
        GraphStatement("joined", "stream", ("cleaned", "users")),
        GraphStatement("orders", "stream", ()),
        GraphStatement("cleaned", "stream", ("orders",)),
        GraphStatement("users", "table", ()),
    ]
    assert arrange(statements) == [["orders", "users"], ["cleaned"], ["joined"]]


def test_a_cycle_in_a_damaged_status_ends():
    assert sum(map(len, arrange([GraphStatement("a", "", ("b",)), GraphStatement("b", "", ("a", "b"))]))) == 2


def test_the_graph_escapes_names_and_links_topics():
    graph = [statement("<script>", topic=None), statement("b/c", "<script>")]
    svg = draw_graph(make_pipeline_row("bank", "", make_status(graph=graph)), "/c/test")
    assert "<script>" not in svg
    assert 'href="/c/test/topics/b%2Fc"' in svg
    assert svg.count('class="edge"') == 1
    assert " style=" not in svg


def test_a_pipeline_without_a_graph_has_no_picture():
    assert draw_graph(make_pipeline_row("bank", "", make_status()), "/c/test") == ""


# Pages


def test_the_console_does_not_import_spark():
    code = "import sys, klamm.console.service; sys.exit('pyspark' in sys.modules or 'pyarrow' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False, timeout=WAIT_S).returncode == 0


@pytest.fixture
def root(broker, tmp_path, monkeypatch):
    """The folder of the cluster's pipelines."""
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    with broker.admin() as admin:
        cluster = admin.describe_cluster().cluster_id
    return f"{data_root()}/{cluster_folder(cluster)}"


class FakeRun:
    """Holds the lock of a pipeline and answers its requests, as a run does."""

    def __init__(self, home, status):
        self.home = home
        self.status = status
        self.received = []
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._answer, daemon=True)

    def __enter__(self):
        self._lock = contextlib.ExitStack()
        self._lock.enter_context(self.home.hold_lock())
        self.home.write_status(self.status)
        self._thread.start()
        return self

    def __exit__(self, *_):
        self._ended.set()
        self._thread.join(WAIT_S)
        self._lock.close()

    def _answer(self):
        while not self._ended.wait(0.02):
            for request in self.home.requests():
                self.received.append((str(request.action), request.query))
                refusal = "it is not paused" if request.action == "resume" else ""
                self.status = {**self.status, "requests": {**self.status["requests"], request.id: refusal}}
                self.home.write_status(self.status)
                self.home.remove_request(request)


def test_a_running_pipeline_is_listed_with_its_numbers(root, visit):
    home = Home(f"{root}/bank")
    status = make_status(
        graph=[statement("orders"), statement("totals", "orders")],
        totals={"state": "running", "rows_per_s": 1234, "lag_records": 7, "state_rows": 55, "late_rows": 3},
    )
    with FakeRun(home, status):
        assert "bank" in visit.get("/c/test/pipelines")
        page = visit.get("/c/test/pipelines/bank")
        assert 'class="graph"' in page
        assert "1.2 k" in page
        assert "/topics/totals" in page
        assert "Stop" in page
    # The lock is free: the process is gone, whatever its last status says.
    page = visit.get("/c/test/pipelines/bank")
    assert "gone" in page
    assert "Pause all" not in page


def test_a_failed_query_shows_its_error_and_the_cure(root, visit):
    values = {"state": "failed", "error_gist": "<b>no such column", "advice": "--rebuild totals"}
    with FakeRun(Home(f"{root}/bank"), make_status(totals=values)):
        page = visit.get("/c/test/pipelines/bank")
    assert "&lt;b&gt;no such column" in page
    assert "--rebuild totals" in page


def test_pause_restart_and_stop_are_requests_to_the_run(root, visit):
    home, base = Home(f"{root}/bank"), "/c/test/pipelines/bank"
    with FakeRun(home, make_status(totals={"state": "running"})) as run:
        assert "Paused totals of bank." in visit.post(base, base, action="pause", query="totals")
        assert "Restarted bank." in visit.post(base, base, action="restart")
        assert "it is not paused" in visit.post(base, base, action="resume")
        visit.post(base, base, 404, action="pause", query="absent")
        visit.post(base, base, 400, action="delete")
        assert not home.stop_requested()
        assert "stops after its batches" in visit.post(base, base, action="stop")
        assert home.stop_requested()
    assert run.received == [("pause", "totals"), ("restart", None), ("resume", None)]
    assert "pause pipeline" in visit.get("/c/test/audit")


def test_a_pipeline_that_does_not_run_takes_no_requests(root, visit):
    home = Home(f"{root}/bank")
    home.write_status(make_status("stopped"))
    assert "Pause all" not in visit.get("/c/test/pipelines/bank")
    # A page that was open when it ended still has the form.
    assert "does not run" in visit.post("/c/test/new-topic", "/c/test/pipelines/bank", action="stop")
    assert not home.stop_requested()


def test_pipelines_of_other_clusters_are_not_shown(root, visit):
    Home(f"{data_root()}/othercluster/secret").write_status(make_status("stopped"))
    assert "secret" not in visit.get("/c/test/pipelines")
    visit.get("/c/test/pipelines/secret", 404)


def test_a_record_of_the_cluster_shows_a_pipeline_elsewhere_and_opens_no_folder(root, broker, console, visit, tmp_path):
    """A record can be written by others: the folder it names is not read, even if it is on this machine."""
    victim = Home(str(tmp_path / "victim"))
    victim.write_status({**make_status("stopped"), "error": "private"})
    name = unique("elsewhere")
    record = PipelineRecord(QueryIdentity("id-1", name, {}, {}), "host-7", victim.path)
    with broker.admin() as admin, broker.producer() as producer:
        if TOPIC not in {topic.name for topic in admin.list_topics(internal=True)}:
            admin.create_topic(TOPIC, 1, configs={"cleanup.policy": "compact"})
        producer.send(TOPIC, b"no record", b"damaged").result()
        producer.send(TOPIC, record.encode(), name.encode()).result()
    console.collect()
    page = wait_for_page(visit, f"/c/test/pipelines/{name}", "host-7")
    assert "private" not in page
    assert "not running" in page


# Dead letters


def letter_headers(stream, topic, error="bad number"):
    facts = {"stream": stream, "topic": topic, "partition": 0, "offset": 5, "timestamp": 1000, "error": error}
    return [(f"dead_letter.{name}", str(value).encode()) for name, value in facts.items()]


@pytest.fixture
def letters(root, broker, console):
    """A stream with two dead letters; returns its topic, and the path of the page."""
    topic = unique("orders")
    with broker.admin() as admin, broker.producer() as producer:
        admin.create_topic(topic, num_partitions=1)
        admin.create_topic(f"{topic}.dead_letters", num_partitions=1)
        for value in (b"first", b"second"):
            producer.send(f"{topic}.dead_letters", value, b"k", headers=letter_headers("orders", topic)).result()
    console.collect()
    graph = [{**statement("orders"), "topic": topic, "dead_letters": f"{topic}.dead_letters"}]
    Home(f"{root}/bank").write_status(make_status("stopped", graph))
    return topic, "/c/test/pipelines/bank/dead-letters/orders"


def values_of(broker, topic):
    with broker.consumer(isolation_level="read_committed", enable_auto_commit=False) as consumer:
        where = TopicPartition(topic, 0)
        end = consumer.end_offsets([where])[where]
        consumer.assign([where])
        values = []
        while consumer.position(where) < end:
            values += [record.value for record in consumer.poll(1.0)]
        return values


def test_dead_letters_are_shown_and_sent_again_once(letters, broker, visit):
    topic, page = letters
    html = visit.get(page)
    assert "bad number" in html
    assert f"{topic} 0/5" in html
    assert "They were 2 records." in visit.post(page, page)
    assert values_of(broker, topic) == [b"first", b"second"]
    assert "They were 0 records." in visit.post(page, page)
    assert values_of(broker, topic) == [b"first", b"second"]


def test_a_letter_for_another_topic_is_not_sent(letters, broker, console, visit):
    topic, page = letters
    other = unique("payroll")
    with broker.admin() as admin, broker.producer() as producer:
        admin.create_topic(other, num_partitions=1)
        headers = letter_headers("orders", other)
        producer.send(f"{topic}.dead_letters", b"forged", b"k", headers=headers).result()
    assert "does not read" in visit.post(page, page)
    assert values_of(broker, other) == []
    # The transaction is aborted: nothing of the others was sent either.
    assert values_of(broker, topic) == []


def test_letters_of_rows_and_files_cannot_be_sent(root, broker, console, visit):
    graph = [
        {**statement("rows"), "dead_letters": "rows.dead_letters", "refused_rows": True},
        {**statement("files", kind="source"), "dead_letters": "files.dead_letters"},
    ]
    Home(f"{root}/bank").write_status(make_status("stopped", graph))
    for name in ("rows", "files"):
        page = f"/c/test/pipelines/bank/dead-letters/{name}"
        assert "Send again" not in visit.get(page)
    visit.get("/c/test/pipelines/bank/dead-letters/absent", 404)
