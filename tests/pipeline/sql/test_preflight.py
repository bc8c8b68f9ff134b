"""What is checked before Spark starts, and how soon the first error is there."""

import os
import socket
import subprocess
import sys
import time

import pytest

from harness.access import SASL_LISTENER, secured_node
from harness.wire import Wire
from klamm.pipeline.sql import SqlError, compile_text
from klamm.pipeline.sql.dry_build import build_dry
from klamm.pipeline.sql.preflight import check_start
from klamm.pipeline.sql.topics import ClusterTopics
from klamm.pipeline.testing import run

FIRST_ERROR_MAX_S = 20.0
"""Two seconds on an idle machine; test machines are busy."""


def unused_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def problems(text, tmp_path, client=None, environment=None):
    pipeline = compile_text(text, str(tmp_path / "p.sql"))
    with pytest.raises(SqlError) as caught:
        check_start(pipeline, client, str(tmp_path / "home"), environment or {})
    return [(*pipeline.source.position(problem.offset), problem.message) for problem in caught.value.problems]


def test_all_problems_are_reported_at_once_with_their_positions(tmp_path):
    port = unused_port()
    (tmp_path / "file").write_text("")
    reported = problems(
        f"SET bootstrap = '127.0.0.1:{port}';\n"
        f"SET registry = 'http://127.0.0.1:{port}';\n"
        "CREATE FUNCTION shout RETURNS STRING AS 'no_such_module:shout';\n"
        "CREATE STREAM s (id STRING) WITH (format = 'avro');\n"
        f"CREATE SINK d WITH (format = 'parquet', path = '{tmp_path}/file/lake') AS SELECT * FROM s;\n"
        f"CREATE SOURCE f (id STRING) WITH (connector = 'files', path = '{tmp_path}/nowhere');\n",
        tmp_path,
    )
    assert [(line, column) for line, column, _ in reported] == [(1, 17), (2, 16), (3, 41), (5, 48), (6, 63)]
    words = [message for *_, message in reported]
    assert words[0].startswith(f"no broker answers at 127.0.0.1:{port} (Connection refused)")
    assert words[1] == f"no registry answers at 127.0.0.1:{port} (Connection refused)"
    assert "there is no function no_such_module:shout" in words[2]
    assert words[3].endswith(f"cannot be made: {tmp_path}/file is not a folder")
    assert words[4].endswith("nowhere does not exist")


def test_secrets_that_are_not_set_are_named(tmp_path):
    text = (
        "SET kafka.ssl.key.password = '${KEY_PASSWORD}';\n"
        "CREATE STREAM s (a INT) WITH (kafka.ssl.key.location = '${KEY}');\n"
    )
    reported = problems(text, tmp_path, environment={"KEY": "x"})
    assert [(line, column) for line, column, _ in reported] == [(1, 30)]
    assert "has no KEY_PASSWORD: export it" in reported[0][2]


def test_a_folder_that_cannot_be_written_is_named(tmp_path, klamm_broker):
    (tmp_path / "home").write_text("")
    text = "CREATE STREAM s (a INT) WITH (partitions = 1);"
    ((_, _, message),) = problems(text, tmp_path, {"bootstrap.servers": klamm_broker.bootstrap})
    assert message == f"the pipeline's folder {tmp_path}/home is not a folder"


@pytest.mark.parametrize("fault", ["broker", "topic"])
def test_the_first_error_is_there_before_spark_starts(fault, tmp_path, klamm_broker):
    bootstrap = f"127.0.0.1:{unused_port()}" if fault == "broker" else klamm_broker.bootstrap
    file = tmp_path / "p.sql"
    file.write_text("CREATE STREAM no_such_topic (a INT);\nCREATE STREAM x AS SELECT a FROM no_such_topic;\n")
    before = time.monotonic()
    command = [sys.executable, "-m", "klamm", "pipeline", "run", str(file), "--bootstrap-server", bootstrap]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, timeout=100, check=False)
    took_s = time.monotonic() - before
    assert done.returncode == 1
    expected = {"broker": "1:1: no broker answers at", "topic": "1:15: topic no_such_topic does not exist"}
    assert f"p.sql:{expected[fault]}" in done.stderr
    assert "starting Spark" not in done.stderr
    assert took_s < FIRST_ERROR_MAX_S
    print(f"first error after {took_s:.2f} s")


def test_a_topic_that_the_user_may_not_see_is_reported_as_perhaps_hidden(tmp_path):
    with secured_node(tmp_path / "node", *SASL_LISTENER) as node, Wire(node.port) as wire:
        wire.create_topic("orders")
        client = {
            "bootstrap.servers": f"127.0.0.1:{node.node.addresses['SASL'][1]}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "bob",
            "sasl.password": "two",
        }
        pipeline = compile_text("CREATE STREAM orders (a INT);", str(tmp_path / "p.sql"))
        ((_, message),) = ClusterTopics(pipeline, client).problems()
        assert message.startswith("topic orders does not exist or this user may not see it; create it")
        assert ClusterTopics(pipeline, {"bootstrap.servers": f"127.0.0.1:{node.port}"}).problems() == []


def test_a_function_is_found_beside_the_file(spark, tmp_path, monkeypatch):
    folder = tmp_path / "beside"
    folder.mkdir()
    (folder / "mine_beside.py").write_text("def shout(text):\n    return text.upper()\n")
    monkeypatch.setattr(sys, "path", list(sys.path))
    file = folder / "p.sql"
    file.write_text(
        "CREATE FUNCTION shout RETURNS STRING AS 'mine_beside:shout';\n"
        "CREATE STREAM s (a STRING);\nCREATE STREAM x AS SELECT shout(a) AS a FROM s;\n"
    )
    assert os.getcwd() != str(folder)
    run(file, {"s": [{"a": "quiet"}]}, spark=spark).expect("x", [{"a": "QUIET"}])


def test_spark_resolves_columns_without_a_cluster(spark):
    text = "CREATE STREAM s (a STRING, n INT);\nCREATE TABLE t AS SELECT a, sum({}) AS n FROM s GROUP BY a;\n"
    build_dry(compile_text(text.format("n"), "p.sql"), spark=spark)
    with pytest.raises(SqlError, match=r"p.sql:2:33: .*`m`"):
        build_dry(compile_text(text.format("m"), "p.sql"), spark=spark)
