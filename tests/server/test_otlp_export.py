"""The export of metrics by OTLP: to a collector that takes them, refuses them, or is away."""

import http.server
import io
import threading

import pytest
from opentelemetry.proto.collector.metrics.v1.metrics_service_pb2 import (
    ExportMetricsServiceRequest,
    ExportMetricsServiceResponse,
)

from harness.members import wait_until
from klamm.model.errors import ConfigError
from klamm.net.free_ports import free_ports
from klamm.server.metrics.otlp_exporter import REPORT_INTERVAL_S, OtlpExporter, parse_endpoint
from klamm.server.metrics.snapshot import NodeSnapshot
from klamm.telemetry import Level, configure, otlp
from klamm.testing import broker as make_broker


class FakeCollector(http.server.ThreadingHTTPServer):
    """Keeps what it is sent, and answers what the test says."""

    def __init__(self):
        super().__init__(("127.0.0.1", 0), _Handler)
        self.requests = []
        self.status, self.answer = 200, b""

    @property
    def url(self):
        return f"http://127.0.0.1:{self.server_address[1]}"

    def metrics(self):
        """The newest points by name."""
        named = {}
        for _, _, body in list(self.requests):
            for scope in ExportMetricsServiceRequest.FromString(body).resource_metrics[0].scope_metrics:
                named |= {metric.name: metric for metric in scope.metrics}
        return named


class _Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append((self.path, self.headers, body))
        self.send_response(self.server.status)
        self.send_header("Content-Length", str(len(self.server.answer)))
        self.end_headers()
        self.wfile.write(self.server.answer)

    def log_message(self, *_):
        pass


@pytest.fixture
def collector():
    with FakeCollector() as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
        thread.start()
        yield server
        server.shutdown()
        thread.join()


@pytest.fixture
def log():
    stream = io.StringIO()
    configure(Level.INFO, stream)
    yield stream
    configure()


class Clock:
    def __init__(self):
        self.now = 0.0

    def __call__(self):
        return self.now


def snapshot():
    return NodeSnapshot(node_id=7, cluster_id="c1", version="1.2", now_ms=5_000, uptime_s=2.0)


def exporter_to(url, take_snapshot=snapshot, now=None):
    return OtlpExporter(parse_endpoint("klamm.otlp.endpoint", url), 60.0, take_snapshot, now or Clock())


def test_one_export(collector):
    exporter = exporter_to(collector.url)
    exporter.export()
    ((path, headers, body),) = collector.requests
    assert path == "/v1/metrics"
    assert headers["Content-Type"] == "application/x-protobuf"
    assert headers["User-Agent"] == "klamm/1.2"
    resource = ExportMetricsServiceRequest.FromString(body).resource_metrics[0].resource
    assert {pair.key: pair.value.string_value for pair in resource.attributes} == {
        "service.namespace": "c1",
        "service.name": "klamm",
        "service.instance.id": "7",
        "service.version": "1.2",
    }
    point = collector.metrics()["klamm_uptime_seconds"].gauge.data_points[0]
    assert point.as_double == 2.0
    assert (point.start_time_unix_nano, point.time_unix_nano) == (3_000_000_000, 5_000_000_000)
    assert (exporter.counts.exports, exporter.counts.failures) == (1, 0)
    assert exporter.counts.points > 20


@pytest.mark.parametrize("status", [400, 503])
def test_refusals_are_counted_and_logged_once_a_minute(collector, log, status):
    clock = Clock()
    exporter = exporter_to(collector.url, now=clock)
    collector.status = status
    for _ in range(3):
        exporter.export()
    assert (exporter.counts.exports, exporter.counts.failures) == (0, 3)
    assert log.getvalue().count("OTLP export failed") == 1
    assert f"answers {status}" in log.getvalue()
    clock.now += REPORT_INTERVAL_S
    exporter.export()
    assert log.getvalue().count("OTLP export failed") == 2
    assert "failures=3" in log.getvalue(), "those of the minute, and the last"
    collector.status = 200
    exporter.export()
    assert exporter.counts.exports == 1


def test_a_collector_that_is_away(log):
    exporter = exporter_to(f"http://127.0.0.1:{free_ports('127.0.0.1', 1)[0]}")
    exporter.export()
    assert exporter.counts.failures == 1
    assert "cannot be reached" in log.getvalue()
    assert "Traceback" not in log.getvalue()


def test_points_that_the_collector_rejects(collector, log):
    response = ExportMetricsServiceResponse()
    response.partial_success.rejected_data_points = 2
    response.partial_success.error_message = "too old"
    collector.answer = response.SerializeToString()
    exporter = exporter_to(collector.url)
    exporter.export()
    assert (exporter.counts.exports, exporter.counts.failures, exporter.counts.rejected_points) == (0, 1, 2)
    assert "the collector rejected 2 points: too old" in log.getvalue()


def test_an_answer_of_something_else(collector, log):
    collector.answer = b"<html>"
    exporter = exporter_to(collector.url)
    exporter.export()
    assert exporter.counts.failures == 1
    assert "not an OTLP response" in log.getvalue()


def test_a_loop_that_does_not_answer(collector, log):
    def take_snapshot():
        raise TimeoutError("the event loop does not answer")

    exporter = exporter_to(collector.url, take_snapshot)
    exporter.export()
    assert exporter.counts.failures == 1
    assert "the event loop does not answer" in log.getvalue()
    assert collector.requests == []


def test_a_bug_has_its_traceback_and_ends_nothing(collector, log):
    snapshots = iter([None, snapshot()])
    exporter = exporter_to(collector.url, lambda: next(snapshots))
    exporter.export()
    assert "Traceback" in log.getvalue()
    exporter.export()
    assert (exporter.counts.exports, exporter.counts.failures) == (1, 1)


def test_points_beyond_the_limit_are_counted(collector, monkeypatch):
    monkeypatch.setattr(otlp, "POINTS_PER_REQUEST", 5)
    monkeypatch.setattr(otlp, "POINTS_MAX", 10)
    exporter = exporter_to(collector.url)
    exporter.export()
    assert 0 < exporter.counts.points <= 10
    assert exporter.counts.omitted_points > 0
    assert exporter.counts.exports == 1


@pytest.mark.parametrize(
    ("text", "url"),
    [
        ("http://127.0.0.1:4318", "http://127.0.0.1:4318/v1/metrics"),
        ("https://collector.example/", "https://collector.example/v1/metrics"),
        ("http://box:4318/otlp/v1/metrics", "http://box:4318/otlp/v1/metrics"),
        ("http://[::1]:4318", "http://[::1]:4318/v1/metrics"),
    ],
)
def test_urls(text, url):
    assert parse_endpoint("klamm.otlp.endpoint", text) == url


@pytest.mark.parametrize("text", ["127.0.0.1:4318", "grpc://box:4317", "http://", "http://box:port", "http://a:b@box"])
def test_what_is_no_url(text):
    with pytest.raises(ConfigError, match=r"klamm\.otlp\.endpoint"):
        parse_endpoint("klamm.otlp.endpoint", text)


def test_a_node_exports_without_a_listener(collector):
    settings = {"klamm.otlp.endpoint": collector.url, "klamm.otlp.interval.ms": 1000}
    with make_broker(config=settings) as broker:
        topic = broker.topic("exported")
        with broker.producer() as producer:
            producer.send(topic, b"tea")
            producer.flush()

        def is_exported():
            metric = collector.metrics().get("kafka_server_brokertopicmetrics_messagesin")
            points = metric.sum.data_points if metric is not None else ()
            return any(
                point.as_int == 1
                and [(pair.key, pair.value.string_value) for pair in point.attributes] == [("topic", topic)]
                for point in points
            )

        wait_until(is_exported)
        wait_until(lambda: "klamm_otlp_exports" in collector.metrics())
        assert broker.node.metrics_addresses == []
    # An export that was under way may take a moment longer than the node.
    wait_until(lambda: not any(thread.name == "otlp" for thread in threading.enumerate()))


def test_a_wrong_url_stops_the_start():
    with (
        pytest.raises(ConfigError, match=r"klamm\.otlp\.endpoint is 'box:4318'"),
        make_broker(config={"klamm.otlp.endpoint": "box:4318"}),
    ):
        pass
