"""What an admin is given is looked at before anything is asked: a name for a list of names, numbers for texts."""

import asyncio
import inspect

import numpy as np
import pytest
from confluent_kafka.admin import AdminClient
from confluent_kafka.admin import ConfigResource as TheirResource

import klamm.testing
from klamm.client import IllegalStateError, KafkaError, NewPartitions, NewTopic, TopicPartition
from klamm.client.admin.async_admin import AsyncAdmin
from klamm.client.admin.types import AclBinding, AclFilter, AclOperation, AclResourceType, AlterOp, ConfigResource
from klamm.client.config import value_text

NOT_ASKED = AsyncAdmin(bootstrap_servers="127.0.0.1:1")
"""Never started: whatever asks a cluster raises IllegalStateError, so a TypeError came before."""

FILLING = {
    "resources": [ConfigResource.topic("t")],
    "group_id": "g",
    "voter_id": 1,
    "directory_id": b"",
    "hmac": b"",
    "partition": ("t", 0),
}


def several() -> list[tuple[str, str]]:
    """Every method of an admin that takes several of something, and the parameter."""
    arguments = []
    for name, method in inspect.getmembers(AsyncAdmin, inspect.isfunction):
        for parameter in inspect.signature(method).parameters.values():
            taken = str(parameter.annotation)
            if not name.startswith("_") and taken.startswith(("Iterable[", "Sequence[")) and name != "add_raft_voter":
                arguments.append((name, parameter.name))
    return arguments


def ask(name: str, **given: object) -> object:
    method = getattr(NOT_ASKED, name)
    needed = [
        parameter for parameter in inspect.signature(method).parameters.values() if parameter.default is parameter.empty
    ]
    return asyncio.run(
        method(
            **{parameter.name: FILLING[parameter.name] for parameter in needed if parameter.name not in given}, **given
        )
    )


def test_many_methods_take_several():
    assert {
        ("delete_topics", "names"),
        ("describe_topics", "names"),
        ("create_topics", "topics"),
        ("delete_groups", "group_ids"),
        ("remove_members", "instance_ids"),
        ("fence_producers", "transactional_ids"),
        ("describe_configs", "keys"),
        ("describe_log_dirs", "topics"),
        ("describe_user_scram_credentials", "users"),
        ("elect_leaders", "partitions"),
    } <= set(several())


@pytest.mark.parametrize(("name", "parameter"), several())
@pytest.mark.parametrize("given", ["ab", b"ab", [b"ab"], 7, [None]])
def test_one_is_not_several(name, parameter, given):
    with pytest.raises(TypeError, match=name):
        ask(name, **{parameter: given})


@pytest.mark.parametrize(
    ("name", "given", "words"),
    [
        ("delete_topics", {"names": "orders"}, r"write \['orders'\]"),
        ("describe_groups", {"group_ids": "bar"}, r"write \['bar'\]"),
        ("create_topics", {"topics": NewTopic("orders")}, r'write \[NewTopic\("orders"\)\]'),
        ("create_topics", {"topics": ["orders"]}, r'NewTopic\("orders"\); \'orders\' is none'),
        ("create_acls", {"rules": AclBinding(AclResourceType.TOPIC, "t", "User:a", AclOperation.READ)}, "AclBinding"),
        ("delete_acls", {"filters": AclFilter()}, r"write \[AclFilter\(\.\.\.\)\]"),
        ("describe_configs", {"resources": ConfigResource.topic("t")}, r"write \[ConfigResource\("),
        ("describe_configs", {"resources": ["t"]}, r'ConfigResource\.topic\("orders"\)'),
        ("alter_configs", {"changes": {"t": {"retention.ms": 1}}}, r"ConfigResource\.topic"),
        ("alter_configs", {"changes": {ConfigResource.topic("t"): "retention.ms=1"}}, "is no mapping"),
        ("elect_leaders", {"partitions": ("t", 0)}, r"write \[\('t', 0\)\]"),
        ("elect_leaders", {"partitions": ["ab"]}, r'e\.g\. \("orders", 0\), not \'ab\''),
        ("delete_records", {"before": {"t": 5}}, r"\(topic, partition\)"),
        ("delete_records", {"before": [("t", 0)]}, "takes a mapping"),
        ("list_offsets", {"specs": {("t", "0"): -1}}, r"\(topic, partition\)"),
        ("alter_group_offsets", {"offsets": {"t-0": 5}}, r"\(topic, partition\)"),
        ("create_partitions", {"counts": {"t": "4"}}, "is no number of partitions"),
        ("alter_client_quotas", {"changes": {(("user", "a"),): {"producer_byte_rate": "1"}}}, "producer_byte_rate='1'"),
    ],
)
def test_the_words_show_what_to_write(name, given, words):
    with pytest.raises(TypeError, match=words):
        ask(name, **given)


def test_what_is_right_is_asked():
    for name, given in (
        ("delete_topics", {"names": ("a", "b")}),
        ("delete_topics", {"names": {"a": 1}.keys()}),
        ("describe_groups", {"group_ids": iter(["a"])}),
        ("create_partitions", {"counts": {"t": NewPartitions(4)}}),
        ("elect_leaders", {"partitions": [("t", 0), TopicPartition("t", 1)]}),
        ("delete_records", {"before": {("t", 0): 5}}),
        ("describe_configs", {"resources": [(2, "t")]}),
    ):
        with pytest.raises(IllegalStateError):
            ask(name, **given)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ("1000", "1000"),
        (1000, "1000"),
        (np.int64(1000), "1000"),
        (7 * 86_400e3, "604800000"),
        (0.5, "0.5"),
        (np.float64(0.25), "0.25"),
        (True, "true"),
        (False, "false"),
        (["compact", "delete"], "compact,delete"),
        ((), ""),
    ],
)
def test_a_value_as_kafka_writes_it(value, text):
    assert value_text("some.key", value) == text


@pytest.mark.parametrize("value", [b"1000", {"a": 1}, [1], object(), None])
def test_what_has_no_text_names_its_key(value):
    with pytest.raises(TypeError, match=r"retention\.ms="):
        value_text("retention.ms", value)


@pytest.fixture(scope="module")
def broker():
    with klamm.testing.broker() as running:
        yield running


def test_a_name_for_a_list_deletes_nothing(broker):
    """Judged by librdkafka: `delete_topics("qw")` must not mean the topics q and w."""
    with broker.admin() as admin:
        admin.create_topics([NewTopic("q"), NewTopic("w"), NewTopic("qw")])
        with pytest.raises(TypeError, match=r"delete_topics takes several: write \['qw'\]"):
            admin.delete_topics("qw")
        assert {"q", "w", "qw"} <= set(
            AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=10).topics
        )
        admin.delete_topics(["qw"])
        left = set(AdminClient({"bootstrap.servers": broker.bootstrap}).list_topics(timeout=10).topics)
        assert {"q", "w"} <= left
        assert "qw" not in left


def test_settings_of_a_topic_are_numbers_booleans_and_lists(broker):
    name = klamm.testing.unique("typed")
    with broker.admin() as admin:
        admin.create_topic(
            name,
            configs={
                "retention.ms": 60_000,
                "min.cleanable.dirty.ratio": 0.25,
                "preallocate": True,
                "cleanup.policy": ["compact", "delete"],
            },
        )
        assert configs(broker, name, "retention.ms", "min.cleanable.dirty.ratio", "preallocate", "cleanup.policy") == [
            "60000",
            "0.25",
            "true",
            "compact,delete",
        ]
        place = ConfigResource.topic(name)
        admin.alter_configs(
            {place: {"retention.ms": 5e3, "preallocate": False, "cleanup.policy": (AlterOp.SUBTRACT, ["compact"])}}
        )
        assert configs(broker, name, "retention.ms", "preallocate", "cleanup.policy") == ["5000", "false", "delete"]
        admin.alter_configs({place: {"retention.ms": None}})
        assert configs(broker, name, "retention.ms") == ["604800000"]
        with pytest.raises(TypeError, match=r"retention\.ms="):
            admin.create_topic(klamm.testing.unique("typed"), configs={"retention.ms": b"1"})
        with pytest.raises(KafkaError):  # null is the broker's to judge
            admin.create_topic(klamm.testing.unique("typed"), configs={"retention.ms": None})


def configs(broker, topic: str, *keys: str) -> list[str]:
    """As librdkafka reads them."""
    theirs = AdminClient({"bootstrap.servers": broker.bootstrap})
    (described,) = theirs.describe_configs([TheirResource("topic", topic)]).values()
    return [described.result(10)[key].value for key in keys]


def test_none_takes_a_move_back():
    """Stories of the admin run on two nodes in compat alone; shapes were only tried with wrong values."""
    with pytest.raises(IllegalStateError):
        ask("alter_partition_reassignments", moves={TopicPartition("t", 0): None, TopicPartition("t", 1): [1, 2]})
    with pytest.raises(TypeError, match="Iterable"):
        ask("alter_partition_reassignments", moves={TopicPartition("t", 0): 3})
