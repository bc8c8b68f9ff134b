"""`--watch`: a list that goes on, through the restart of its node; and what is measured in it."""

import json
import os
import signal
import subprocess
import threading

import pytest
from click.testing import CliRunner

from harness import KLAMM, KlammProcess, Wire, batch, unique
from klamm.cli import exit_codes
from klamm.cli.bench import percentiles
from klamm.cli.main import cli
from klamm.cli.topic import TopicRates


@pytest.mark.parametrize("noun", ["topic", "group"])
def test_a_list_goes_on_when_its_node_is_started_again(tmp_path, noun):
    with KlammProcess(tmp_path) as node:
        with Wire(node.port) as wire:
            name = wire.create_topic("watched")
            wire.produce(name, batch(b"x"))
        if noun == "group":
            seek = ["group", "seek", "watchers", "--to", "earliest", "--topic", name, "-b", node.bootstrap]
            assert CliRunner().invoke(cli, seek).exit_code == 0
        process = subprocess.Popen(
            [*KLAMM, noun, "ls", "--watch", "100ms", "-o", "jsonl", "-b", node.bootstrap],
            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
            env={**os.environ, "KLAMM_CONTEXTS": os.devnull},
        )  # fmt: skip
        try:
            first = json.loads(process.stdout.readline())
            node.kill9()
            assert "waiting, Ctrl-C ends it" in process.stderr.readline()
            node.start()
            assert "answers again" in process.stderr.readline()
            assert json.loads(process.stdout.readline())
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=60)
        finally:
            process.kill()
            process.communicate()
        assert process.returncode == 0
    if noun == "topic":
        assert (first["topic"], first["offsets"], first["records_per_s"]) == ("watched", 1, None)
    else:
        assert (first["group"], first["members"], first["lag"]) == ("watchers", 0, 1)


def test_a_rate_is_what_was_added_in_the_time_between():
    moments = iter([10.0, 12.0, 14.0])
    rates = TopicRates(lambda: next(moments))
    assert [rates.add("t", end) for end in (100, 150, 140)] == [None, 25.0, 0.0]


def test_one_list_with_rates(klamm):
    """Rates were shown with --watch alone, so that no script could ask for them."""
    with Wire(klamm.port) as wire:
        name = wire.create_topic(unique("rated"))
        stop = threading.Event()

        def write():
            while not stop.is_set():
                assert wire.produce(name, batch(b"x")).error_code == 0

        writer = threading.Thread(target=write)
        writer.start()
        try:
            words = ["topic", "ls", name, "-b", klamm.bootstrap]
            rated = CliRunner().invoke(cli, [*words, "--rate", "1500ms", "-o", "jsonl"])
            table = CliRunner().invoke(cli, [*words, "--rate", "-o", "table"])
        finally:
            stop.set()
            writer.join()
    row = json.loads(rated.stdout)
    assert (row["topic"], row["partitions"]) == (name, 1)
    assert row["records_per_s"] > 0
    assert row["offsets"] > 0
    assert row["size_bytes"] > 0
    assert table.stdout.splitlines()[0].endswith("RECORDS PER S"), table.stdout
    assert CliRunner().invoke(cli, [*words, "--rate", "soon"]).exit_code == exit_codes.USAGE


def test_percentiles_of_latencies():
    assert percentiles([]) == {"p50_ms": None, "p95_ms": None, "p99_ms": None, "max_ms": None}
    assert percentiles([n / 1000 for n in range(1, 101)]) == {
        "p50_ms": 51.0, "p95_ms": 96.0, "p99_ms": 100.0, "max_ms": 100.0,
    }  # fmt: skip


def test_a_bench_tells_percentiles(klamm):
    done = CliRunner().invoke(cli, ["bench", "-n", "500", "--topic", "timed", "-o", "json", "-b", klamm.bootstrap])
    write, read = json.loads(done.stdout)
    assert 0 < write["p50_ms"] <= write["p95_ms"] <= write["p99_ms"] <= write["max_ms"]
    assert read["p50_ms"] is None
