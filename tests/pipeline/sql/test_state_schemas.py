"""Types of state that change without a change of the query, and what an operator reads about it."""

import json
from dataclasses import replace

import pytest

from klamm.model.errors import ConfigError
from klamm.pipeline.sql import compile_text
from klamm.pipeline.sql.core.query_failures import STATE_TYPES, lasting_failure, safe_message
from klamm.pipeline.sql.core.state_schemas import describe_schemas, schema_changes
from klamm.pipeline.sql.run_plan import plan_run
from klamm.pipeline.sql.runner import renew_identity, run_pipeline
from klamm.pipeline.sql.state_folders import home_of
from klamm.pipeline.sql.status import Home, error_summary

TEXT = """
CREATE STREAM payments (account STRING, amount {type}) WITH (topic = '{payments}', bad_records = 'fail');
CREATE STREAM copy WITH (topic = '{copy}') AS SELECT account, amount, amount AS other FROM payments;
CREATE TABLE tops WITH (topic = '{tops}') AS SELECT account, {top} FROM copy GROUP BY account;
"""
NAMES = {"payments": "payments", "copy": "copy", "tops": "tops"}
INPUT = {"account": "STRING", "amount": "INT", "other": "INT"}


def changes(copy, tops, top="max(amount) AS top"):
    pipeline = compile_text(TEXT.format(type="INT", top=top, **NAMES))
    before = {"copy": INPUT, "tops": {"account": "STRING", "top": "INT"}}
    stored = json.loads(json.dumps(describe_schemas(pipeline, before)))
    assert list(stored) == ["tops"], "a query without state has no types to keep"
    return schema_changes(stored, describe_schemas(pipeline, {"copy": {**INPUT, **copy}, "tops": tops}), pipeline)


def test_the_column_that_has_changed_is_named():
    same = {"account": "STRING", "top": "INT"}
    assert changes({}, same) == {}
    assert changes({}, {**same, "top": "BIGINT"}) == {"tops": "tops.top is BIGINT instead of INT"}
    assert changes({"account": "INT"}, same) == {"tops": "copy.account is INT instead of STRING"}
    assert changes({}, {"account": "STRING"}) == {"tops": "tops no longer has top"}
    assert changes({}, {**same, "more": "INT"}) == {"tops": "tops now has more INT"}


def test_columns_that_are_not_read_and_wider_integers_in_sums_keep_state():
    same = {"account": "STRING", "top": "INT"}
    assert changes({"other": "DOUBLE", "more": "STRING"}, same) == {}
    assert changes({"amount": "BIGINT"}, same, "sum(amount) AS top") == {}
    assert changes({"amount": "BIGINT"}, same) == {"tops": "copy.amount is BIGINT instead of INT"}


def test_state_of_older_versions_has_no_types():
    pipeline = compile_text(TEXT.format(type="INT", top="max(amount) AS top", **NAMES))
    assert schema_changes({}, describe_schemas(pipeline, {"copy": INPUT}), pipeline) == {}


def with_registry(kind):
    """Return a pipeline whose stream has got the type of `amount` from a registry."""
    text = TEXT.format(type=kind, top="max(amount) AS top", **NAMES).replace("FROM copy", "FROM payments")
    pipeline = compile_text(text, "p.sql")
    nodes = [
        replace(node, create=replace(node.create, resolved=True)) if node.name == "payments" else node
        for node in pipeline.nodes
    ]
    return replace(pipeline, nodes=tuple(nodes))


def test_a_plan_without_spark_compares_the_columns_of_a_registry(tmp_path):
    before, home = with_registry("INT"), Home(str(tmp_path))
    identity = renew_identity(before, home)
    home.keep(replace(identity, schemas=describe_schemas(before, {"tops": {"account": "STRING", "top": "INT"}})))
    cluster = {"bootstrap.servers": "127.0.0.1:1"}
    verdicts = {change.name: change for change in plan_run(with_registry("DOUBLE"), home, cluster)[0]}
    assert verdicts["tops"].verdict == "rebuild"
    assert verdicts["tops"].reason.startswith("payments.amount is DOUBLE instead of INT")
    (tops,) = [change for change in plan_run(before, home, cluster)[0] if change.name == "tops"]
    assert (tops.verdict, tops.reason) == ("same", "")


def test_a_plan_without_spark_says_which_types_it_has_not_compared(tmp_path):
    text, home = TEXT.format(type="INT", top="max(amount) AS top", **NAMES), Home(str(tmp_path))
    home.keep(renew_identity(compile_text(text, "p.sql"), home))

    def tops(version):
        return next(change for change in plan_run(compile_text(version, "p.sql"), home)[0] if change.name == "tops")

    assert (tops(text).verdict, tops(text).reason) == ("same", "")
    changed = tops(text.replace("SELECT account, amount,", "SELECT account, amount * 1.5 AS amount,"))
    assert (changed.verdict, changed.reason) == (
        "same",
        "derived types were not compared: klamm pipeline plan FILE --spark",
    )


FORCE = "If you want to force running the query without schema validation, please set "
CHECK = "spark.sql.streaming.stateStore.stateSchemaCheck to false."
SPARK_TEXTS = [
    f"[STATE_STORE_KEY_SCHEMA_NOT_COMPATIBLE] Provided key schema does not match the existing one. {FORCE}{CHECK}",
    "[STATE_STORE_VALUE_SCHEMA_NOT_COMPATIBLE] Provided value schema does not match existing state value schema.",
    f"Provided schema doesn't match to the schema for existing state! Check the count of fields.\n- {FORCE}{CHECK}",
]


@pytest.mark.parametrize("text", SPARK_TEXTS)
def test_advice_that_corrupts_state_is_replaced(text):
    assert safe_message(text) == STATE_TYPES
    failure = lasting_failure(RuntimeError(text), error_summary(text), "bank", "tops")
    assert failure.reason == STATE_TYPES
    assert "--rebuild tops" in failure.advice


def test_advice_to_remove_a_checkpoint_is_left_out():
    text = "The offsets are of another topic. Delete the checkpoint directory and run it again. It has 3 files."
    assert safe_message(text) == "The offsets are of another topic. It has 3 files."
    assert safe_message("a broker is away. It set x to 3.") == "a broker is away. It set x to 3."


@pytest.mark.timeout(600)
def test_a_type_that_changes_upstream_is_refused_before_anything_is_written(
    spark, patiently, klamm_broker, klamm_admin, klamm_name, tmp_path
):
    names = {name: klamm_name(name) for name in NAMES}
    settings = {"bootstrap": klamm_broker.bootstrap, "checkpoint": str(tmp_path / "home"), "partitions": "1"}
    klamm_admin.create_topic(names["payments"], 1)

    def run(kind, **options):
        text = TEXT.format(type=kind, top="max(amount) AS top", **names)
        pipeline = compile_text(text, "bank.sql", settings)
        with klamm_broker.producer() as producer:
            producer.send(names["payments"], b'{"account": "a", "amount": 5}')
        patiently(run_pipeline, pipeline, once=True, spark=spark, **options)

    def ends():
        with klamm_broker.consumer() as consumer:
            partitions = [(names[name], 0) for name in ("copy", "tops")]
            return list(consumer.end_offsets(partitions).values())

    run("INT")
    written = ends()
    with pytest.raises(ConfigError, match=r"tops must be rebuilt: tops.top is BIGINT instead of INT.*--rebuild tops"):
        run("BIGINT")
    assert ends() == written
    home = home_of(compile_text(TEXT.format(type="INT", top="max(amount) AS top", **names), "bank.sql", settings))
    # An identity of an older version has no types, so Spark's own check decides.
    document = json.loads((tmp_path / "home" / "pipeline.json").read_text())
    (tmp_path / "home" / "pipeline.json").write_text(json.dumps({**document, "schemas": {}}))
    with pytest.raises(ConfigError, match="tops failed: its state in the checkpoint has other types"):
        run("BIGINT")
    status = json.dumps(home.status())
    assert "--rebuild tops" in status
    assert "stateSchemaCheck" not in status
    run("BIGINT", rebuild=["tops"])
    assert home.status()["queries"]["tops"]["error"] is None
