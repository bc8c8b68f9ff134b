"""A pipeline on a cluster with an authorizer: the rights of the guide are enough, and a missing one is named."""

import re
from pathlib import Path

import pytest

from harness.access import SASL_LISTENER, secured_node
from klamm.client import Admin, Consumer, Producer
from klamm.client.admin.acl_types import AclBinding
from klamm.model.acls import AclOperation, AclResourceType, PatternType
from klamm.model.errors import ConfigError
from klamm.pipeline.sql import SqlError, compile_text
from klamm.pipeline.sql.core.pipeline_rights import find_user, pipeline_rights
from klamm.pipeline.sql.runner import run_pipeline
from klamm.testing import unique

pytestmark = pytest.mark.timeout(600)
GUIDE = Path(__file__).parents[3] / "docs" / "guides" / "pipeline-operations.md"
TEXT = """
CREATE STREAM payments (account STRING, amount INT) WITH (topic = '{prefix}payments');
CREATE STREAM large WITH (topic = '{prefix}large') AS SELECT account, amount FROM payments WHERE amount > 3;
CREATE TABLE totals WITH (topic = '{prefix}totals') AS
  SELECT account, sum(amount) AS total FROM large GROUP BY account;
"""


class Cluster:
    """A node on which alice logs in, and whose administrator grants her rights."""

    def __init__(self, node):
        self.admin = {"bootstrap.servers": f"127.0.0.1:{node.port}"}
        self.alice = {
            "bootstrap.servers": f"127.0.0.1:{node.node.addresses['SASL'][1]}",
            "security.protocol": "SASL_PLAINTEXT",
            "sasl.mechanism": "PLAIN",
            "sasl.username": "alice",
            "sasl.password": "one",
        }

    def grant(self, rights):
        bindings = [
            AclBinding(
                right.resource,
                right.name,
                "User:alice",
                right.operation,
                pattern_type=PatternType.PREFIXED if right.prefixed else PatternType.LITERAL,
            )
            for right in rights
        ]
        with Admin(self.admin) as admin:
            admin.create_acls(bindings)

    def send(self, topic, *values):
        with Admin(self.admin) as admin:
            admin.create_topic(topic, 1)
        with Producer(self.admin) as producer:
            for value in values:
                producer.send(topic, value.encode())

    def read(self, topic, count):
        reading = {"auto.offset.reset": "earliest", "group.id": unique(), "isolation.level": "read_committed"}
        with Consumer({**self.admin, **reading}) as consumer:
            consumer.subscribe([topic])
            records = iter(consumer)
            return [next(records).value.decode() for _ in range(count)]


@pytest.fixture
def cluster(tmp_path):
    with secured_node(tmp_path / "node", *SASL_LISTENER) as node:
        yield Cluster(node)


def prepare(cluster, tmp_path):
    prefix = f"{unique()}."
    values = ('{"account": "a", "amount": 5}', '{"account": "a", "amount": 4}', "no JSON")
    cluster.send(f"{prefix}payments", *values)
    text = TEXT.format(prefix=prefix)
    pipeline = compile_text(text, "bank.sql", {"checkpoint": str(tmp_path / "state")})
    return prefix, pipeline, pipeline_rights(pipeline, "alice").rights


def test_the_rights_are_enough(spark, patiently, cluster, tmp_path):
    prefix, pipeline, rights = prepare(cluster, tmp_path)
    cluster.grant(rights)
    patiently(run_pipeline, pipeline, client=cluster.alice, once=True, spark=spark)
    assert cluster.read(f"{prefix}totals", 1) == ['{"account":"a","total":9}']
    assert cluster.read(f"{prefix}payments.dead_letters", 1) == ["no JSON"]


@pytest.mark.parametrize(
    ("operation", "name"),
    [
        (AclOperation.WRITE, "transactional-id:klamm-"),
        (AclOperation.READ, "group:klamm-"),
        (AclOperation.CREATE, "topic:{prefix}large"),
        (AclOperation.READ, "topic:__klamm_"),
    ],
)
def test_a_missing_right_is_named(spark, cluster, tmp_path, operation, name):
    prefix, pipeline, rights = prepare(cluster, tmp_path)
    command = f"{operation.name.lower()} {name.format(prefix=prefix)}"
    cluster.grant(right for right in rights if not str(right).startswith(command))
    with pytest.raises(ConfigError) as caught:
        run_pipeline(pipeline, client=cluster.alice, once=True, spark=spark)
    assert f"klamm acl add alice {command}" in str(caught.value)


def test_a_right_that_a_query_lacks_is_named(spark, cluster, tmp_path):
    """The topic is there and hidden: it cannot be checked before the query writes."""
    prefix, pipeline, rights = prepare(cluster, tmp_path)
    cluster.send(f"{prefix}large")
    cluster.grant(right for right in rights if not str(right).endswith(f":{prefix}large") or "create" in str(right))
    with pytest.raises(ConfigError) as caught:
        run_pipeline(pipeline, client=cluster.alice, once=True, spark=spark)
    assert f"klamm acl add alice write topic:{prefix}large" in str(caught.value)


def test_all_missing_rights_on_topics_are_reported_before_spark_starts(cluster, tmp_path):
    prefix, pipeline, rights = prepare(cluster, tmp_path)
    cluster.send(f"{prefix}large")
    names = (f"write topic:{prefix}large", f"read topic:{prefix}payments")
    cluster.grant(right for right in rights if str(right) not in names)
    cluster.grant(
        right._replace(operation=AclOperation.DESCRIBE) for right in rights if right.resource is AclResourceType.TOPIC
    )
    with pytest.raises(SqlError) as caught:
        run_pipeline(pipeline, client=cluster.alice, once=True)
    positions = [pipeline.source.position(problem.offset)[0] for problem in caught.value.problems]
    assert positions == [2, 3]
    for problem, name in zip(caught.value.problems, reversed(names), strict=True):
        assert problem.message == f"the user alice lacks {name}: klamm acl add alice {name}"


def test_a_topic_that_a_user_may_not_see(cluster, tmp_path):
    prefix, pipeline, _ = prepare(cluster, tmp_path)
    with pytest.raises(SqlError, match=f"if it exists: klamm acl add alice read topic:{re.escape(prefix)}payments"):
        run_pipeline(pipeline, client=cluster.alice, once=True)


def test_an_error_without_a_name_lists_all_rights_of_its_kind():
    pipeline = compile_text(TEXT.format(prefix=""), "bank.sql")
    rights = pipeline_rights(pipeline, "alice")
    assert rights.explain("OUT_OF_ORDER_SEQUENCE_NUMBER: orders") is None
    assert rights.explain("GROUP_AUTHORIZATION_FAILED: klamm-bank-1") == (
        "the user alice lacks read group:klamm- --prefixed: klamm acl add alice read group:klamm- --prefixed"
    )
    everything = rights.explain("TOPIC_AUTHORIZATION_FAILED: The principal is not allowed to do this.") or ""
    assert "write topic:large" in everything
    assert "read topic:payments" in everything


@pytest.mark.parametrize("place", ["large", "topic large", "large-12", "large: no access", "large."])
def test_a_refusal_says_which_rights_its_topic_needs_and_not_that_all_are_missing(place):
    rights = pipeline_rights(compile_text(TEXT.format(prefix=""), "bank.sql"), "alice")
    names = ("read topic:large", "write topic:large", "create topic:large")
    assert rights.explain(f"in payments\nKafkaError: TOPIC_AUTHORIZATION_FAILED: {place}\n at payments") == (
        f"the user alice lacks one of the rights that it needs, {', '.join(names)}: "
        + "; ".join(f"klamm acl add alice {name}" for name in names)
    )


@pytest.mark.parametrize(
    ("error", "place"),
    [
        ("TOPIC_AUTHORIZATION_FAILED: large_eu", "topic large_eu"),
        ("TOPIC_AUTHORIZATION_FAILED: large.eu-0", "topic large.eu-0"),
        ("TOPIC_AUTHORIZATION_FAILED: topic large-eu: no access", "topic large-eu"),
        ("GROUP_AUTHORIZATION_FAILED: others", "group others"),
    ],
)
def test_a_refusal_of_what_the_pipeline_does_not_name_blames_no_right(error, place):
    rights = pipeline_rights(compile_text(TEXT.format(prefix=""), "bank.sql"), "alice")
    assert rights.explain(error) == (f"the user alice was refused the {place}, which no right of this pipeline names")


@pytest.mark.parametrize(
    ("client", "user"),
    [
        ({}, "USER"),
        ({"security.protocol": "SASL_SSL", "sasl.username": "alice"}, "alice"),
        ({"security.protocol": "SASL_SSL", "sasl.jaas.config": 'Module required username="bob" password="x";'}, "bob"),
        ({"security.protocol": "SASL_SSL", "sasl.jaas.config": 'M required username="id" tokenauth=true;'}, "USER"),
        ({"security.protocol": "SSL", "sasl.username": "alice"}, "USER"),
    ],
)
def test_the_user_is_that_of_the_settings(client, user):
    assert find_user(client) == user


def test_the_guide_has_the_lines_of_the_rights():
    section = GUIDE.read_text().partition("## Rights\n")[2].partition("\n## ")[0]
    pipeline = compile_text(TEXT.format(prefix=""), "bank.sql")
    lines = {f"klamm acl add pipeline {right}" for right in pipeline_rights(pipeline, "pipeline").rights}
    assert lines == set(re.findall(r"^- `(klamm acl add pipeline .*)`$", section, re.MULTILINE))
