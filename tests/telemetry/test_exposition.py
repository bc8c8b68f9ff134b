"""The text formats, read by the parsers of Prometheus' own client."""

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse_text

from klamm.telemetry.exposition import Family, Naming, accepts_openmetrics, format_labels, render
from klamm.telemetry.histogram import Histogram


def families():
    times = Histogram()
    times.observe(0.001)
    times.observe(0.5)
    histogram = Family("klamm_request_seconds", "histogram", "Times.")
    histogram.add_histogram([("request", "Produce")], times.read())
    summary = Family("kafka_network_requestmetrics_totaltimems", "summary", "Times.")
    summary.add_summary([("request", "Produce")], times.read(), times.read(), 1000)
    return [
        Family("kafka_brokers", "gauge", "Brokers.", [("", 3)]),
        Family(
            "kafka_server_brokertopicmetrics_bytesin", "counter", "Bytes.", [('{topic="a"}', 7), ("", 7)], rate=True
        ),
        histogram,
        summary,
        Family("klamm_nothing", "gauge", "A family without samples is left out."),
    ]


def text(**options):
    return b"".join(render(families(), **options)).decode()


def test_prometheus_reads_the_text():
    read = {family.name: family for family in parse_text(text())}
    assert set(read) == {
        "kafka_brokers",
        "kafka_server_brokertopicmetrics_bytesin",
        "klamm_request_seconds",
        "kafka_network_requestmetrics_totaltimems",
    }
    assert read["kafka_brokers"].samples[0].value == 3
    bytes_in = read["kafka_server_brokertopicmetrics_bytesin"]
    assert bytes_in.type == "counter"
    assert {(s.name, s.labels.get("topic"), s.value) for s in bytes_in.samples} == {
        ("kafka_server_brokertopicmetrics_bytesin_total", "a", 7),
        ("kafka_server_brokertopicmetrics_bytesin_total", None, 7),
    }
    buckets = [s for s in read["klamm_request_seconds"].samples if s.name.endswith("_bucket")]
    assert [s.value for s in buckets] == sorted(s.value for s in buckets)
    assert buckets[-1].labels == {"request": "Produce", "le": "+Inf"}
    assert buckets[-1].value == 2


def test_openmetrics_is_read_by_its_strict_parser():
    read = {family.name: family for family in parse_openmetrics(text(openmetrics=True))}
    assert read["kafka_server_brokertopicmetrics_bytesin"].type == "counter"
    assert read["kafka_network_requestmetrics_totaltimems"].type == "summary"
    assert text(openmetrics=True).endswith("# EOF\n")


def test_confluents_spelling_keeps_kafkas_persec():
    read = text(naming=Naming.CONFLUENT)
    assert 'kafka_server_brokertopicmetrics_bytesinpersec{topic="a"} 7' in read
    assert "bytesin_total" not in read
    # A counter without _total has no type in OpenMetrics.
    list(parse_openmetrics(text(openmetrics=True, naming=Naming.CONFLUENT)))


def test_label_values_are_escaped():
    value = 'a"b\\c\nd'
    family = Family("klamm_x", "gauge", "X.", [(format_labels([("group", value)]), 1)])
    (read,) = parse_text(b"".join(render([family])).decode())
    assert read.samples[0].labels == {"group": value}


@pytest.mark.parametrize(
    ("accept", "openmetrics"),
    [
        ("", False),
        ("*/*", False),
        ("text/plain", False),
        ("application/openmetrics-text;version=1.0.0;q=0.6,text/plain;version=0.0.4;q=0.3,*/*;q=0.2", True),
        ("text/plain;q=0.9, application/openmetrics-text;q=0.1", False),
        ("application/openmetrics-text;q=nonsense", False),
    ],
)
def test_the_client_chooses_the_format(accept, openmetrics):
    assert accepts_openmetrics(accept) is openmetrics
