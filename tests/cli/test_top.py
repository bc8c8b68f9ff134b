"""`klamm top`: what it computes from two scrapes, and one look at a node."""

import json
import re
import socket

import pytest
from click.testing import CliRunner

from klamm.cli.main import cli
from klamm.cli.top_listeners import parse_listener
from klamm.cli.top_nodes import WatchedNodes
from klamm.cli.top_samples import (
    Scrape,
    group_rows,
    node_rows,
    parse_samples,
    request_rows,
    silent_node_row,
    topic_rows,
)
from klamm.cli.top_screen import screen_lines, share_rows
from klamm.testing import broker as make_broker

BEFORE = """
# TYPE kafka_server_brokertopicmetrics_messagesin_total counter
kafka_server_brokertopicmetrics_messagesin_total 100
kafka_server_brokertopicmetrics_messagesin_total{topic="a"} 90
kafka_server_brokertopicmetrics_messagesin_total{topic="b"} 10
kafka_server_brokertopicmetrics_bytesin_total{topic="a"} 1000
kafka_network_requestmetrics_requests_total{request="Produce"} 50
kafka_network_requestmetrics_requests_total{request="Fetch"} 5
"""
AFTER = """
klamm_build_info{version="1",node_id="7",cluster_id="c"} 1
kafka_server_brokertopicmetrics_messagesin_total 300
kafka_server_brokertopicmetrics_messagesin_total{topic="a"} 290
kafka_server_brokertopicmetrics_messagesin_total{topic="b"} 10
kafka_server_brokertopicmetrics_bytesin_total{topic="a"} 5000
kafka_network_requestmetrics_requests_total{request="Produce"} 90
kafka_network_requestmetrics_requests_total{request="Fetch"} 5
kafka_network_requestmetrics_totaltimems{request="Produce",quantile="0.99"} 12.5
kafka_consumergroup_members{consumergroup="a \\"b\\""} 2
kafka_consumergroup_lag_sum{consumergroup="a \\"b\\"",topic="a"} 3
kafka_consumergroup_lag_sum{consumergroup="a \\"b\\"",topic="b"} 4
kafka_consumergroup_group_max_lag_seconds{group="a \\"b\\""} 61.25
kafka_consumergroup_members{consumergroup="idle"} 0
"""
PAIR = (Scrape("n:1", 10.0, parse_samples(BEFORE)), Scrape("n:1", 12.0, parse_samples(AFTER)))


def test_rates_are_differences_over_the_time_between():
    (node,) = node_rows([PAIR])
    assert (node["node"], node["records_per_s"], node["requests_per_s"]) == ("7", 100.0, 20.0)
    topics = topic_rows([PAIR, PAIR])
    assert [(row["topic"], row["records_per_s"], row["bytes_in_per_s"]) for row in topics] == [
        ("a", 200.0, 4000.0),
        ("b", 0.0, 0.0),
    ]


def test_a_node_that_was_restarted_has_no_negative_rate():
    (node,) = node_rows([(PAIR[1], Scrape("n:1", 14.0, PAIR[0].samples))])
    assert node["records_per_s"] == 0


def test_groups_are_ordered_by_the_age_of_what_they_have_not_read():
    assert group_rows([PAIR[1]]) == [
        {"group": 'a "b"', "members": 2, "lag": 7, "lag_seconds": 61.2},
        {"group": "idle", "members": 0, "lag": 0, "lag_seconds": None},
    ]


def test_only_apis_that_were_called_are_shown():
    assert request_rows([PAIR]) == [{"request": "Produce", "per_s": 20.0, "p50_ms": 0.0, "p99_ms": 12.5}]


def test_confluents_spelling_is_read_too():
    assert parse_samples("kafka_server_brokertopicmetrics_bytesinpersec 3\n") == {
        "kafka_server_brokertopicmetrics_bytesin": {(): 3.0}
    }


def run(*args):
    return CliRunner().invoke(cli, ["top", *args], prog_name="klamm")


@pytest.fixture(scope="module")
def address():
    with make_broker(config={"metrics.listeners": "127.0.0.1:0"}) as broker:
        broker.topic("watched")
        host, port = broker.node.metrics_addresses[0]
        yield f"{host}:{port}"


def test_one_look_at_a_node(address):
    done = run("--metrics", address, "--every", "100ms", "--once", "-o", "json")
    assert done.exit_code == 0, done.output
    look = json.loads(done.stdout)
    assert look["nodes"][0]["address"] == address
    assert look["nodes"][0]["controller"] is True
    table = run("--metrics", address, "--every", "100ms", "--once", "-o", "table").stdout
    assert "nodes\n" in table
    assert "REC/S" in table


def test_an_address_without_metrics_is_refused():
    done = run("--metrics", "127.0.0.1:1", "--once")
    assert done.exit_code != 0
    assert "no metrics at 127.0.0.1:1" in done.stderr


@pytest.mark.parametrize("end", ["", "/", "/metrics"])
def test_an_address_may_be_a_url(address, end):
    done = run("--metrics", f"http://{address}{end}", "--metrics", address, "--every", "100ms", "--once", "-o", "json")
    assert done.exit_code == 0, done.output
    # One node, which is written in two ways.
    assert [node["address"] for node in json.loads(done.stdout)["nodes"]] == [address]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("node-1:9404", "node-1:9404"),
        ("http://Node-1:9404", "node-1:9404"),
        ("HTTP://[::1]:9404/metrics", "[::1]:9404"),
        ("[::1]:1", "[::1]:1"),
    ],
)
def test_addresses_of_listeners(text, expected):
    assert parse_listener(text) == expected


@pytest.mark.parametrize(
    "text",
    [
        "",
        "9404",
        "node",
        "node:",
        "node:port",
        "node:0",
        "node:65536",
        ":9404",
        "::1:9404",
        "[::1:9404",
        "a b:9404",
        "node:9404/health",
        "http://node",
        "http://node:port",
        "http://node:9404/metrics?name[]=x",
        "http://node:9404/#top",
        "http://user:word@node:9404",
        "ftp://node:9404",
        "node:9404,other:9404",
    ],
)
def test_an_address_that_is_none_is_refused(text):
    done = run("--metrics", text, "--once")
    assert done.exit_code == 2
    assert f"{text!r} is neither HOST:PORT nor http://HOST:PORT" in " ".join(done.stderr.split())


def test_metrics_over_tls_are_refused():
    done = run("--metrics", "https://node:9404", "--once")
    assert done.exit_code == 2
    assert "metrics listeners have no TLS; write http://node:9404" in " ".join(done.stderr.split())


@pytest.fixture
def silent_address():
    """A socket that accepts connections and sends nothing."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


def test_a_node_that_does_not_answer_has_a_row_and_the_others_are_shown(address):
    done = run("--metrics", "127.0.0.1:1", "--metrics", address, "--every", "100ms", "--once", "-o", "json")
    assert done.exit_code == 0, done.output
    dead, live = json.loads(done.stdout)["nodes"]
    assert dead.keys() == live.keys()
    assert (dead["address"], dead["node"], dead["records_per_s"]) == ("127.0.0.1:1", None, None)
    assert dead["no_answer_since_timestamp_ms"] > 0
    assert (live["address"], live["no_answer_since_timestamp_ms"]) == (address, None)
    table = run("--metrics", "127.0.0.1:1", "--metrics", address, "--every", "100ms", "--once", "-o", "table").stdout
    assert re.search(r"^-  127\.0\.0\.1:1 does not answer since \d\d:\d\d:\d\d$", table, re.MULTILINE)


def test_a_silent_node_does_not_hold_back_the_others(address, silent_address):
    watched = WatchedNodes([silent_address, address])
    silent, live = watched.nodes
    while live.pair is None:
        watched.fetch_all(0.5)
    since_ms = silent.no_answer_since_ms
    assert (silent.pair, silent.error) == (None, "timed out")
    watched.fetch_all(0.5)
    assert silent.no_answer_since_ms == since_ms
    assert live.pair[1].value("klamm_build_info", **dict(next(iter(live.pair[1].samples["klamm_build_info"])))) == 1


def test_a_node_that_answers_again_is_shown_again(address):
    watched = WatchedNodes([address])
    (node,) = watched.nodes
    node.record_failure("timed out", 1000)
    node.record_failure("refused", 2000)
    assert (node.no_answer_since_ms, node.error) == (1000, "refused")
    while node.pair is None:
        watched.fetch_all(30)
    assert (node.no_answer_since_ms, node.error) == (None, "")


def full_tables():
    nodes = [{**row, "address": f"10.20.30.{i}:9404"} for i in range(3) for row in node_rows([PAIR])]
    nodes.append(silent_node_row("10.20.30.9:9404", PAIR[1], 1_700_000_000_000))
    rates = {"records_per_s": 123456.7, "bytes_in_per_s": 12345678.9, "bytes_out_per_s": 12345678.9}
    topics = [{"topic": f"topic-{i}-" + "n" * 60, **rates} for i in range(30)]
    topics.append({"topic": "__consumer_offsets", **dict.fromkeys(rates, 0.0)})
    groups = [{"group": f"group-{i}", "members": 3, "lag": 7, "lag_seconds": None} for i in range(20)]
    requests = [{"request": f"Api{i}", "per_s": 1.0, "p50_ms": 0.5, "p99_ms": 1234.5} for i in range(9)]
    return {"nodes": nodes, "topics": topics, "groups": groups, "requests": requests}


@pytest.mark.parametrize("size", [(80, 24), (60, 20), (120, 40), (200, 100), (30, 8)])
def test_the_tables_fit_the_terminal(size):
    width, height = size
    lines = screen_lines(full_tables(), width, height)
    assert max(len(line.text) for line in lines) <= width
    assert len(lines) <= height
    assert "7  10.20.30.9:9404 does not " in "\n".join(line.text for line in lines)


def test_a_terminal_of_usual_size_shows_every_table():
    text = "\n".join(line.text for line in screen_lines(full_tables(), 80, 23))
    assert re.findall(r"^(nodes|topics|groups|requests)(?: \((\d+) of (\d+)\))?$", text, re.MULTILINE) == [
        ("nodes", "3", "4"),
        ("topics", "3", "30"),
        ("groups", "3", "20"),
        ("requests", "3", "9"),
    ]
    assert "URP" in text
    assert "CONNS" not in text
    wide = "\n".join(line.text for line in screen_lines(full_tables(), 200, None))
    assert "CONNS" in wide
    assert "11.8 MiB" in wide


def test_idle_internal_topics_are_hidden():
    text = "\n".join(line.text for line in screen_lines(full_tables(), None, 200))
    assert "topic-29" in text
    assert "__consumer_offsets" not in text
    tables = full_tables()
    tables["topics"][-1]["records_per_s"] = 0.5
    assert "__consumer_offsets" in "\n".join(line.text for line in screen_lines(tables, None, 200))


def test_tables_with_few_rows_leave_the_height_to_others():
    assert share_rows({"nodes": 1, "topics": 100, "groups": 0, "requests": 4}, 24) == {
        "nodes": 1,
        "topics": 8,
        "groups": 0,
        "requests": 4,
    }
    assert share_rows({"nodes": 12, "topics": 12}, None) == {"nodes": 12, "topics": 10}
