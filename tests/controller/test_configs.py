"""Changing configs: what counts, what is refused, what is written."""

import pytest

from klamm.metadata import ConfigResource, ResourceType
from klamm.model.errors import ErrorCode
from klamm.protocol.messages import alter_configs as ac
from klamm.protocol.messages import incremental_alter_configs as iac
from klamm.protocol.messages.metadata_records import ClearElrRecord, ConfigRecord

SET, DELETE, APPEND, SUBTRACT = range(4)
TOPIC, BROKER = ResourceType.TOPIC, ResourceType.BROKER


def change(one, kind, name, *changes, validate_only=False):
    configs = [iac.AlterableConfig(name=key, config_operation=op, value=value) for key, op, value in changes]
    resource = iac.AlterConfigsResource(resource_type=kind, resource_name=name, configs=configs)
    request = iac.IncrementalAlterConfigsRequest(resources=[resource], validate_only=validate_only)
    return one.commit(one.controller.incremental_alter_configs(request)).responses[0]


def replace_all(one, kind, name, configs):
    listed = [ac.AlterableConfig(name=key, value=value) for key, value in configs.items()]
    resource = ac.AlterConfigsResource(resource_type=kind, resource_name=name, configs=listed)
    return one.commit(one.controller.alter_configs(ac.AlterConfigsRequest(resources=[resource]))).responses[0]


@pytest.fixture
def one(cluster):
    made = cluster(1)
    made.create("orders", 1, 1)
    return made


def test_set_and_delete(one):
    assert change(one, TOPIC, "orders", ("retention.ms", SET, "5"), ("segment.ms", SET, "6")).error_code == 0
    assert one.image.topic_configs("orders") == {"retention.ms": "5", "segment.ms": "6"}
    answer = change(one, TOPIC, "orders", ("retention.ms", DELETE, None))
    assert (answer.error_code, answer.error_message, answer.resource_name) == (0, None, "orders")
    assert one.image.topic_configs("orders") == {"segment.ms": "6"}


def test_append_and_subtract_start_from_the_value_in_force(one):
    change(one, TOPIC, "orders", ("cleanup.policy", APPEND, "compact"))
    assert one.image.topic_configs("orders") == {"cleanup.policy": "delete,compact"}
    change(one, TOPIC, "orders", ("cleanup.policy", APPEND, "compact,delete"))
    change(one, TOPIC, "orders", ("cleanup.policy", SUBTRACT, "delete"))
    assert one.image.topic_configs("orders") == {"cleanup.policy": "compact"}


@pytest.mark.parametrize(
    ("kind", "name", "key", "op", "value", "code"),
    [
        (TOPIC, "orders", "retention.ms", APPEND, "1", ErrorCode.INVALID_CONFIG),
        (TOPIC, "orders", "retention.sm", SET, "1", ErrorCode.INVALID_CONFIG),
        (TOPIC, "orders", "retention.ms", SET, "soon", ErrorCode.INVALID_CONFIG),
        (TOPIC, "orders", "retention.ms", SET, None, ErrorCode.INVALID_REQUEST),
        (TOPIC, "orders", "retention.ms", 9, "1", ErrorCode.INVALID_REQUEST),
        (TOPIC, "unknown", "retention.ms", SET, "1", ErrorCode.UNKNOWN_TOPIC_OR_PARTITION),
        (BROKER, "1", "log.dirs", SET, "/tmp", ErrorCode.INVALID_REQUEST),
        (BROKER, "1", "num.io.threads", SET, "many", ErrorCode.INVALID_REQUEST),
        (BROKER, "", "listeners", SET, "PLAINTEXT://:1", ErrorCode.INVALID_REQUEST),
        (BROKER, "7", "num.io.threads", SET, "3", ErrorCode.BROKER_ID_NOT_REGISTERED),
        (BROKER, "one", "num.io.threads", SET, "3", ErrorCode.INVALID_REQUEST),
        (99, "x", "k", SET, "v", ErrorCode.INVALID_REQUEST),
        (ResourceType.GROUP, "", "consumer.session.timeout.ms", SET, "45000", ErrorCode.INVALID_REQUEST),
        (ResourceType.GROUP, "g", "consumer.session.timeout", SET, "45000", ErrorCode.INVALID_CONFIG),
    ],
)
def test_refusals(one, kind, name, key, op, value, code):
    before = one.image.configs
    answer = change(one, kind, name, (key, op, value))
    assert answer.error_code == code
    assert answer.error_message
    assert one.image.configs == before


def test_changes_to_one_resource_count_together(one):
    changes = (("retention.ms", SET, "5"), ("segment.ms", SET, "never"))
    assert change(one, TOPIC, "orders", *changes).error_code == ErrorCode.INVALID_CONFIG
    assert one.image.topic_configs("orders") == {}


def test_a_resource_or_a_key_given_twice_is_refused(one):
    answer = change(one, TOPIC, "orders", ("retention.ms", SET, "5"), ("retention.ms", DELETE, None))
    assert answer.error_code == ErrorCode.INVALID_REQUEST
    twice = [
        iac.AlterConfigsResource(
            resource_type=TOPIC,
            resource_name="orders",
            configs=[iac.AlterableConfig(name="retention.ms", value=value)],
        )
        for value in ("1", "2")
    ]
    answer = one.commit(
        one.controller.incremental_alter_configs(iac.IncrementalAlterConfigsRequest(resources=twice))
    ).responses
    assert [resource.error_code for resource in answer] == [ErrorCode.INVALID_REQUEST]


def test_validate_only_writes_nothing(one):
    before = one.next_offset
    assert change(one, TOPIC, "orders", ("retention.ms", SET, "5"), validate_only=True).error_code == 0
    assert one.next_offset == before


def test_a_topic_config_that_already_holds_is_not_written_again(one):
    change(one, TOPIC, "orders", ("retention.ms", SET, "5"))
    before = one.next_offset
    change(one, TOPIC, "orders", ("retention.ms", SET, "5"))
    assert one.next_offset == before


def test_a_broker_hears_of_a_config_even_when_it_stays_the_same(one):
    for _ in range(2):
        assert change(one, BROKER, "1", ("num.io.threads", SET, "3")).error_code == 0
    assert isinstance(one.log[-1], ConfigRecord)
    assert isinstance(one.log[-2], ConfigRecord)
    assert change(one, BROKER, "", ("num.io.threads", SET, "4")).error_code == 0
    assert one.image.broker_configs(1) == {"num.io.threads": "3"}
    assert one.image.broker_configs(None)["num.io.threads"] == "4"


def test_what_all_brokers_have_new_topics_inherit(one):
    change(one, BROKER, "", ("log.retention.ms", SET, "77"))
    configs = {config.name: config for config in one.create("later", 1, 1).configs}
    assert (configs["retention.ms"].value, configs["retention.ms"].config_source) == ("77", 3)


def test_a_plugins_broker_config_is_kept(one):
    assert change(one, BROKER, "1", ("my.plugin.color", SET, "red")).error_code == 0


def test_alter_configs_replaces_everything(one):
    change(one, TOPIC, "orders", ("retention.ms", SET, "5"), ("segment.ms", SET, "6"))
    assert replace_all(one, TOPIC, "orders", {"segment.ms": "7"}).error_code == 0
    assert one.image.topic_configs("orders") == {"segment.ms": "7"}
    assert replace_all(one, TOPIC, "orders", {"segment.ms": None}).error_code == ErrorCode.INVALID_REQUEST
    assert replace_all(one, TOPIC, "unknown", {"segment.ms": "7"}).error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert replace_all(one, TOPIC, "orders", {}).error_code == 0
    assert ConfigResource(TOPIC, "orders") not in one.image.configs


def test_a_new_minimum_of_replicas_forgets_who_was_eligible(one):
    change(one, TOPIC, "orders", ("min.insync.replicas", SET, "1"))
    assert one.log[-1] == ClearElrRecord(topic_name="orders")
    change(one, BROKER, "", ("min.insync.replicas", SET, "2"))
    assert one.log[-1] == ClearElrRecord(topic_name="")


def test_what_eligible_leader_replicas_count_by_stays(one):
    """No older test deleted a config that the cluster had written itself, so none saw a cluster without it."""
    answer = change(one, BROKER, "", ("min.insync.replicas", DELETE, None))
    assert answer.error_code == ErrorCode.INVALID_CONFIG
    assert "cannot be removed while ELR is enabled" in answer.error_message
    assert replace_all(one, BROKER, "", {"log.retention.ms": "5"}).error_code == ErrorCode.INVALID_CONFIG
    assert change(one, BROKER, "1", ("min.insync.replicas", SET, "1")).error_code == ErrorCode.INVALID_CONFIG
    assert change(one, BROKER, "", ("min.insync.replicas", SET, "2")).error_code == 0
    assert one.image.broker_values(None)["min.insync.replicas"] == 2


def test_a_value_longer_than_older_clients_can_read_is_refused(one):
    name = "leader.replication.throttled.replicas"
    halves = [",".join(f"{partition}:1" for partition in range(start, start + 3000)) for start in (0, 5000)]
    assert change(one, TOPIC, "orders", (name, SET, halves[0])).error_code == 0
    assert change(one, TOPIC, "orders", (name, APPEND, halves[1])).error_code == ErrorCode.INVALID_CONFIG


def test_whatever_case_a_flag_is_written_in_it_counts(one):
    """The check reads TRUE as true; what decided elections compared texts."""
    change(one, TOPIC, "orders", ("unclean.leader.election.enable", SET, " TRUE\x01"))
    assert one.image.topic_values("orders") == {"unclean.leader.election.enable": True}
