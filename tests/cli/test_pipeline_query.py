"""`klamm pipeline query` and `serve` as they are typed, against a node."""

import json
import os
import re
import signal
import subprocess
import sys

import httpx2
import pytest
from click.testing import CliRunner

from harness import unique
from klamm.cli import exit_codes
from klamm.cli.main import cli
from klamm.client import Admin, Producer


@pytest.fixture(autouse=True)
def no_contexts(monkeypatch, tmp_path):
    monkeypatch.setenv("KLAMM_CONTEXTS", str(tmp_path / "contexts.json"))
    monkeypatch.delenv("KLAMM_CONTEXT", raising=False)
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def put(klamm):
    topic = unique("balances")
    with Admin(bootstrap_servers=klamm.bootstrap) as admin:
        admin.create_topic(topic, 2)

    def call(rows):
        with Producer(bootstrap_servers=klamm.bootstrap) as producer:
            for key, value in rows:
                producer.send(topic, value if value is None else json.dumps(value).encode(), key=key.encode())
            producer.flush()

    call.topic = topic
    return call


@pytest.fixture
def file(put, tmp_path):
    path = tmp_path / "bank.sql"
    path.write_text(
        f"CREATE TABLE balances (account STRING, balance BIGINT) WITH (topic = '{put.topic}', key = 'account');\n"
        "CREATE TABLE absent (id STRING, n INT) WITH (key = 'id');\n"
    )
    return str(path)


@pytest.fixture
def run(klamm, file):
    def call(*words, exits=0):
        done = CliRunner().invoke(cli, ["pipeline", "query", file, *words, "-b", klamm.bootstrap], prog_name="klamm")
        assert done.exit_code == exits, done.output
        return done

    return call


def test_a_pull_query_in_every_form(run, put):
    put([("ada", {"balance": 1}), ("bob", {"balance": 2}), ("ada", {"balance": 3}), ("eve", {"balance": "x"})])
    done = run("SELECT * FROM balances WHERE account = 'ada'", "-o", "json")
    assert json.loads(done.stdout) == [{"account": "ada", "balance": 3}]
    assert "left out 1 record of" in done.stderr
    csv = run("SELECT account, balance FROM balances ORDER BY 1", "-o", "csv")
    assert csv.stdout.splitlines() == ["account,balance", "ada,3", "bob,2"]
    table = run("SELECT account, balance FROM balances ORDER BY 1", "-o", "table")
    assert [line.split() for line in table.stdout.splitlines()] == [["ACCOUNT", "BALANCE"], ["ada", "3"], ["bob", "2"]]
    assert run("SELECT * FROM balances WHERE false", "-o", "csv").stdout == "account,balance\r\n".replace("\r\n", "\n")


def test_rows_beyond_the_limit_are_told(run, put):
    put([(f"k{number}", {"balance": number}) for number in range(20)])
    done = run("SELECT * FROM balances", "--max-rows", "5")
    assert len(done.stdout.splitlines()) == 5
    assert "only the first 5 rows are shown; --max-rows shows more" in done.stderr


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["DROP TABLE balances"], "only SELECT can be run here, this is DROP"),
        (["SELECT * FROM balancez"], "there is no table balancez; did you mean balances"),
        (["SELECT * FROM nope"], "there is no table nope; the file has absent, balances"),
        (["SELECT nothing FROM balances"], "nothing"),
        (["SELECT foo(1) FROM balances"], "Scalar Function with name foo does not exist"),
        (["SELECT * FROM read_csv('/etc/passwd')"], "file system operations are disabled"),
        (["SELECT foo(1) FROM balances", "--watch"], "Scalar Function with name foo does not exist"),
        (
            ["SELECT count(*) FROM balances, range(1000000) a, range(1000000) b, range(9) c", "--max-time", "300ms"],
            "0.3 s",
        ),
    ],
)
def test_what_is_refused_is_one_sentence(run, put, words, message):
    put([("ada", {"balance": 1})])
    done = run(*words, exits=exit_codes.REFUSED)
    assert message in done.stderr
    assert len(done.stderr.splitlines()) <= 2  # the second has the columns that there are
    assert isinstance(done.exception, SystemExit)


def test_a_topic_that_is_not_there(run):
    done = run("SELECT * FROM absent", exits=exit_codes.NOT_FOUND)
    assert "there is no topic absent, which has the rows of absent" in done.stderr


@pytest.mark.parametrize(
    "words", [["--max-time", "0s"], ["--max-memory", "1k"], ["--max-rows", "0"], ["--changes-only"]]
)
def test_options_that_make_no_sense(run, words):
    run("SELECT * FROM balances", *words, exits=exit_codes.USAGE)


def test_neither_spark_nor_a_server_is_imported(klamm, file, put):
    put([("ada", {"balance": 1})])
    program = (
        "import sys; from klamm.cli.main import cli\n"
        "try: cli(['pipeline', 'query', *sys.argv[1:]])\n"
        "except SystemExit as end: assert not end.code, end\n"
        "wrong = [name for name in sys.modules if name.split('.')[0] in ('pyspark', 'uvicorn')]\n"
        "wrong += [name for name in sys.modules if name.startswith(('klamm.server', 'klamm.storage', 'klamm.raft'))]\n"
        "assert wrong == [], wrong"
    )
    words = [file, "SELECT * FROM balances", "-b", klamm.bootstrap]
    done = subprocess.run([sys.executable, "-c", program, *words], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"account": "ada", "balance": 1}


def start(*words):
    return subprocess.Popen(
        [sys.executable, "-m", "klamm", "pipeline", *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONWARNINGS": "default"},
    )


def end(process):
    process.send_signal(signal.SIGINT)
    output, errors = process.communicate(timeout=60)
    assert process.returncode in (0, exit_codes.INTERRUPTED), errors
    assert "Traceback" not in errors
    return output, errors


def test_a_push_query_prints_what_changes(klamm, file, put):
    put([("ada", {"balance": 1})])
    words = ("query", file, "SELECT * FROM balances", "--watch", "-b", klamm.bootstrap, "-o", "jsonl")
    process = start(*words)
    try:
        assert json.loads(process.stdout.readline()) == {"change": "+", "account": "ada", "balance": 1}
        put([("ada", {"balance": 2})])
        assert json.loads(process.stdout.readline()) == {"change": "-", "account": "ada", "balance": 1}
        assert json.loads(process.stdout.readline()) == {"change": "+", "account": "ada", "balance": 2}
        end(process)
    finally:
        process.kill()
        process.communicate()


def test_tables_are_served_until_the_end(klamm, put, tmp_path):
    put([("ada", {"balance": 1})])
    path = tmp_path / "one.sql"
    path.write_text(
        f"CREATE TABLE balances (account STRING, balance BIGINT) WITH (topic = '{put.topic}', key = 'account');"
    )
    words = ("serve", str(path), "--listen", "0", "--store", str(tmp_path / "store"), "-b", klamm.bootstrap)
    words += ("--server-name", "tables.example")
    for balance in (1, 2):
        process = start(*words)
        try:
            lines = iter(process.stderr.readline, "")
            address = next(match for line in lines if (match := re.search(r"http://127.0.0.1:\d+", line)))
            assert httpx2.get(f"{address[0]}/tables/balances/ada").json() == {"account": "ada", "balance": balance}
            for host, status in (("tables.example", 200), ("other.example", 421)):
                reply = httpx2.get(f"{address[0]}/tables/balances/ada", headers={"Host": host})
                assert (host, reply.status_code) == (host, status), reply.text
            end(process)
        finally:
            process.kill()
            process.communicate()
        put([("ada", {"balance": 2})])
    assert (tmp_path / "store").exists()
