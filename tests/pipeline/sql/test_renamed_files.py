"""A file that was renamed without SET name: its state is found by its outputs, and no row is written twice."""

import json
import os

import pytest
from click.testing import CliRunner

import klamm
from klamm.cli.main import cli
from klamm.model.errors import ConfigError
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.runner import run_pipeline
from klamm.pipeline.sql.state_folders import home_of

pytestmark = pytest.mark.timeout(600)

TEXT = """
CREATE STREAM payments (account STRING, amount INT) WITH (topic = '{payments}', bad_records = 'fail');
CREATE STREAM copies WITH (topic = '{copies}') AS SELECT account, amount FROM payments;
CREATE SINK lake WITH (format = 'parquet', path = '{path}') AS SELECT account, amount FROM payments;
"""


def test_a_renamed_file_continues_and_a_second_pipeline_is_refused(
    spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path, monkeypatch
):
    monkeypatch.chdir(tmp_path)
    names = {name: klamm_name(name) for name in ("payments", "copies")}
    klamm_admin.create_topic(names["payments"], 1)
    text = TEXT.format(path=tmp_path / "lake", **names)
    messages = []

    def run(file, text=text):
        pipeline = compile_text(text, file, {"bootstrap": klamm_broker.bootstrap, "partitions": "1"})
        patiently(run_pipeline, pipeline, once=True, spark=spark, report=messages.append)
        return home_of(pipeline)

    def send(amount):
        with klamm_broker.producer() as producer:
            producer.send(names["payments"], json.dumps({"account": "a", "amount": amount}).encode())

    send(1)
    bank = run("bank.sql")
    first = bank.identity()
    send(2)
    (tmp_path / "store.sql").write_text(text)
    planned = CliRunner().invoke(cli, ["pipeline", "plan", "store.sql", "-b", klamm_broker.bootstrap])
    assert f"store has run as bank in {os.uname().nodename}:{bank.path}: run continues it" in planned.stderr
    assert planned.stdout.count("[same]") == 2

    # While it runs under the old name, nothing is moved.
    with bank.hold_lock(), pytest.raises(ConfigError, match="runs already"):
        run("store.sql")
    store = run("store.sql")
    assert f"store has run as bank: it continues, and its state was moved to {store.path}" in messages
    assert (store.identity().id, store.identity().name) == (first.id, "store")
    assert not os.path.exists(bank.path)

    # Another pipeline with one of the outputs, and the old file again.
    with pytest.raises(ConfigError, match=rf"copies writes to topic {names['copies']}, as the pipeline store in "):
        run("other.sql", text.replace(str(tmp_path / "lake"), str(tmp_path / "lake2")))
    send(3)
    run("bank.sql")

    topic = klamm.read_topic(names["copies"], bootstrap=klamm_broker.bootstrap, timeout_s=60)
    assert [json.loads(row["value"])["amount"] for row in topic.to_pylist()] == [1, 2, 3]
    assert sorted(row["amount"] for row in spark.read.parquet(str(tmp_path / "lake")).collect()) == [1, 2, 3]
