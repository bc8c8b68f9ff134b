"""`klamm sql` as it is typed: over topics of a node, from a pipe and at a prompt."""

import json
import os
import pty
import re
import select
import subprocess
import sys
import time

import pytest
from click.testing import CliRunner

from harness import unique
from klamm.cli import exit_codes
from klamm.cli.main import cli
from klamm.client import Admin, Producer
from klamm.registry.client import parse_settings, shared_registry
from klamm.registry.codecs.compilation import compile_schema
from klamm.registry.framing import prefix
from pipeline.small_registry import small_registry


@pytest.fixture(autouse=True)
def no_contexts(monkeypatch, tmp_path):
    monkeypatch.setenv("KLAMM_CONTEXTS", str(tmp_path / "contexts.json"))
    monkeypatch.delenv("KLAMM_CONTEXT", raising=False)


@pytest.fixture
def run(klamm):
    def call(*words, exits=0, stdin=None):
        done = CliRunner().invoke(cli, ["sql", *words, "-b", klamm.bootstrap], input=stdin, prog_name="klamm")
        assert done.exit_code == exits, done.output
        return done

    return call


def rows(done):
    return [json.loads(line) for line in done.stdout.splitlines()]


@pytest.fixture
def payments(klamm):
    topic = unique("payments").replace("-", "_")
    with Admin(bootstrap_servers=klamm.bootstrap) as admin:
        admin.create_topic(topic, 2, configs={"retention.ms": "-1"})  # its records are of 2023
    with Producer(bootstrap_servers=klamm.bootstrap) as producer:
        for number in range(10):
            value = json.dumps({"account": f"a{number % 3}", "amount": number}).encode()
            producer.send(
                topic,
                value,
                key=b"k%d" % (number % 3),
                partition=number % 2,
                timestamp=1_700_000_000_000 + number * 1000,
            )
        producer.flush()
    return topic


def test_values_of_a_registry(run, klamm):
    topic = unique("drinks").replace("-", "_")
    schema = {"type": "record", "name": "Drink", "fields": [{"name": "cents", "type": "long"}]}
    with small_registry() as registry:
        client = shared_registry(parse_settings(registry.url))
        value = client.register(f"{topic}-value", json.dumps(schema), "AVRO")
        codec = compile_schema(client, value)
        with Admin(bootstrap_servers=klamm.bootstrap) as admin:
            admin.create_topic(topic, 1)
        with Producer(bootstrap_servers=klamm.bootstrap) as producer:
            for cents in (120, 250):
                producer.send(topic, prefix(value.id) + codec.encode({"cents": cents}))
            producer.send(topic, b"not framed").result(30)
        done = run(f"SELECT sum(cents) AS cents FROM {topic}", "--registry", registry.url)
    assert rows(done) == [{"cents": 370}]
    assert "1 of 3 values" in done.stderr


def test_sums_over_a_topic(run, payments):
    done = run(f"SELECT account, sum(amount) AS amount FROM {payments} GROUP BY 1 ORDER BY 1")
    assert rows(done) == [
        {"account": "a0", "amount": 18},
        {"account": "a1", "amount": 12},
        {"account": "a2", "amount": 15},
    ]
    table = run(f"SELECT count(*) AS n FROM {payments} WHERE amount >= 5", "-o", "table")
    assert table.stdout.split() == ["N", "5"]
    joined = run(f"SELECT count(*) AS n FROM {payments} a JOIN {payments} b USING (account)")
    assert rows(joined) == [{"n": 16 + 9 + 9}]
    assert rows(run("SELECT 1 + 1 AS two")) == [{"two": 2}]


@pytest.mark.parametrize(
    ("words", "count"),
    [
        (["--from", "3"], 4),
        (["--from", "-1"], 2),
        (["--to", "2"], 4),
        (["--from", "1", "--to", "2"], 2),
        (["--since", "2023-11-14T22:13:25Z"], 5),
        (["--until", "2023-11-14T22:13:25Z"], 5),
        (["--from", "2023-11-14T22:13:22Z", "--to", "2023-11-14T22:13:25Z"], 3),
        (["--since", "1h"], 0),
        (["--from", "latest"], 0),
    ],
)
def test_ranges_are_spelt_as_in_consume(run, payments, words, count):
    assert rows(run(f"SELECT count(*) AS n FROM {payments}", *words)) == [{"n": count}]


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (["SELECT * FROM no_such_topic"], exit_codes.NOT_FOUND, "there is no topic no_such_topic"),
        (["DELETE FROM x"], exit_codes.REFUSED, "only SELECT can be run here"),
        (["SELECT * FROM '/etc/passwd'"], exit_codes.REFUSED, ""),
        (["SELECT 1", "--from", "soon"], exit_codes.USAGE, "no position"),
        (["SELECT 1", "--from", "1", "--since", "1h"], exit_codes.USAGE, "exclude each other"),
        (["SELECT nonsense"], exit_codes.REFUSED, "nonsense"),
    ],
)
def test_what_is_refused_is_one_sentence(run, words, code, message):
    done = run(*words, exits=code)
    assert message in done.stderr
    assert "Traceback" not in done.output


def test_what_is_read_has_a_limit(run, payments):
    done = run(f"SELECT * FROM {payments}", "--max-records", "9", exits=exit_codes.REFUSED)
    assert "10 records in this range, more than --max-records 9" in done.stderr
    assert len(rows(run(f"SELECT * FROM {payments}", "--max-records", "9", "--from", "1"))) == 8
    cut = run(f"SELECT * FROM {payments}", "--max-rows", "2")
    assert len(rows(cut)) == 2
    assert "only the first 2 rows" in cut.stderr


def test_statements_from_a_pipe(run, payments):
    text = f"SELECT count(*) AS n\nFROM {payments};\n\n\\d {payments}\nSELECT 2 AS two"
    done = rows(run(stdin=text))
    assert done[0] == {"n": 10}
    assert {"column": "amount", "type": "BIGINT"} in done
    assert done[-1] == {"two": 2}
    assert payments in [row["topic"] for row in rows(run(stdin="\\d\n"))]
    assert "lists" in run(stdin="\\?\n").stdout or "topics" in run(stdin="\\?\n").stdout
    run(stdin="SELECT nonsense;", exits=exit_codes.REFUSED)


def test_a_prompt(klamm, payments, tmp_path):
    """Over a terminal: several lines are one statement, a mistake does not end it, and lines are remembered."""
    master, terminal = pty.openpty()
    environment = {**os.environ, "XDG_CONFIG_HOME": str(tmp_path), "TERM": "dumb", "COLUMNS": "200"}
    environment.pop("KLAMM_CONTEXTS")
    process = subprocess.Popen(
        [sys.executable, "-m", "klamm", "sql", "-b", klamm.bootstrap],
        stdin=terminal,
        stdout=terminal,
        stderr=terminal,
        env=environment,
        start_new_session=True,
    )
    os.close(terminal)
    shown = ""

    def wait_for(pattern):
        nonlocal shown
        deadline = time.monotonic() + 60
        while not re.search(pattern, shown):
            assert time.monotonic() < deadline, shown
            assert select.select([master], [], [], 60)[0], shown
            shown += re.sub(r"\x1b\[[0-9;?]*[a-z]", "", os.read(master, 4096).decode(errors="replace"))
        shown = shown[re.search(pattern, shown).end() :]

    try:
        wait_for("klamm> ")
        os.write(master, b"SELECT nonsense;\n")
        wait_for("klamm: .*nonsense")
        wait_for("klamm> ")
        os.write(master, f"SELECT count(*) AS how_many\nFROM {payments};\n".encode())
        wait_for(r"\.\.\.> ")
        wait_for(r"HOW MANY\s+10\s")
        wait_for("klamm> ")
        os.write(master, b"\\q\n")
        assert process.wait(60) == 0
    finally:
        process.kill()
        process.wait()
        os.close(master)
    history = tmp_path / "klamm" / "sql_history"
    assert "SELECT nonsense;" in history.read_text()
    assert history.stat().st_mode & 0o077 == 0
