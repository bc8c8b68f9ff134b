"""A row that is larger than its topic takes: the query ends with what to do, and goes on after it was done."""

import json

import pytest

import klamm
from klamm.client.admin.types import ConfigResource
from klamm.model.errors import ConfigError
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.runner import run_pipeline

pytestmark = pytest.mark.timeout(600)

TEXT = """
CREATE STREAM notes (text STRING) WITH (topic = '{notes}', bad_records = 'fail');
CREATE STREAM copies WITH (topic = '{copies}') AS SELECT text FROM notes;
"""


def test_a_row_larger_than_its_topic_takes_ends_the_query(spark, klamm_broker, klamm_admin, klamm_name, tmp_path):
    names = {name: klamm_name(name) for name in ("notes", "copies")}
    klamm_admin.create_topic(names["notes"], 1)
    klamm_admin.create_topic(names["copies"], 1, configs={"max.message.bytes": "5000"})
    settings = {"bootstrap": klamm_broker.bootstrap, "checkpoint": str(tmp_path / "home"), "partitions": "1"}
    pipeline = compile_text(TEXT.format(**names), "notes.sql", settings)
    with klamm_broker.producer() as producer:
        # No compression makes 20,000 random digits fit.
        for text in ("short", "".join(str(number * 7919 % 99991) for number in range(4000))):
            producer.send(names["notes"], json.dumps({"text": text}).encode())
    refusal = f"copies failed: a row of copies is larger than topic {names['copies']} takes"
    with pytest.raises(ConfigError, match=refusal):
        run_pipeline(pipeline, once=True, spark=spark)

    klamm_admin.alter_configs({ConfigResource.topic(names["copies"]): {"max.message.bytes": "100000"}})
    run_pipeline(pipeline, once=True, spark=spark)
    rows = klamm.read_topic(names["copies"], bootstrap=klamm_broker.bootstrap, timeout_s=60)
    assert len(rows) == 2
