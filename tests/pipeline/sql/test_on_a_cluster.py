"""A pipeline on a cluster: topics made, tables upserted once, dead letters kept and sent again, changes held to."""

import json

import pytest

import klamm
from klamm.client.admin.types import ConfigResource
from klamm.model.errors import ConfigError
from klamm.pipeline.sql import SqlError, compile_text
from klamm.pipeline.sql.dead_letters import DeadLetters
from klamm.pipeline.sql.runner import run_pipeline
from klamm.pipeline.sql.state_folders import home_of

pytestmark = pytest.mark.timeout(600)

TEXT = """
CREATE STREAM payments (account STRING, amount INT) WITH (topic = '{payments}');
CREATE TABLE balances WITH (topic = '{balances}') AS
  SELECT account, sum(amount) AS balance FROM payments GROUP BY account;
"""


def values(broker, topic):
    table = klamm.read_topic(topic, bootstrap=broker.bootstrap, timeout_s=60)
    return [(row["key"], row["value"]) for row in table.to_pylist()]


def test_a_table_of_a_stream(spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path):
    names = {name: klamm_name(name) for name in ("payments", "balances")}
    settings = {"bootstrap": klamm_broker.bootstrap, "checkpoint": str(tmp_path / "home"), "partitions": "1"}
    text = TEXT.format(**names)

    def run(text=text, **options):
        patiently(run_pipeline, compile_text(text, "bank.sql", settings), once=True, spark=spark, **options)

    with pytest.raises(SqlError, match=r"bank.sql:2:15: topic .* does not exist"):
        run()
    klamm_admin.create_topic(names["payments"], 1)
    with klamm_broker.producer() as producer:
        for value in (b'{"account": "a", "amount": 5}', b"{broken", b'{"account": "b", "amount": 1}'):
            producer.send(names["payments"], value)
    run()
    letters = DeadLetters(compile_text(text, "bank.sql", settings), "payments", {})
    first = sorted(values(klamm_broker, names["balances"]))
    assert first == [(b"a", b'{"account":"a","balance":5}'), (b"b", b'{"account":"b","balance":1}')]
    assert values(klamm_broker, letters.topic) == [(None, b"{broken")]
    configs = klamm_admin.describe_configs([ConfigResource.topic(names["balances"])])
    (config,) = configs.values()
    assert config["cleanup.policy"].value == "compact"

    # The log of commits is lost: the batch is done again, and not written again.
    for path in (tmp_path / "home" / "balances.0" / "commits").iterdir():
        path.unlink()
    run()
    assert sorted(values(klamm_broker, names["balances"])) == first
    status = home_of(compile_text(text, "bank.sql", settings)).status()
    assert (status["state"], set(status["queries"])) == ("stopped", {"payments.dead_letters", "balances"})

    (letter,) = letters.read(10)
    assert (letter.topic, letter.offset, letter.value) == (names["payments"], 1, b"{broken")
    assert (letters.redrive(), letters.redrive(), letters.read(10)) == (1, 0, [])
    assert values(klamm_broker, names["payments"])[-1] == (None, b"{broken")
    assert json.loads((tmp_path / "home" / "pipeline.json").read_text())["generations"]["balances"] == 0
    with pytest.raises(ConfigError, match="--rebuild balances"):
        run(text.replace("sum(", "max("))
