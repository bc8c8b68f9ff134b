"""DescribeConfigs, IncrementalAlterConfigs and AlterConfigs."""

import time

import pytest

from harness.wire import batch, unique
from klamm.model.errors import ErrorCode

TOPIC, BROKER, BROKER_LOGGER, CLIENT_METRICS, GROUP = 2, 4, 8, 16, 32
DYNAMIC_TOPIC, DYNAMIC_BROKER, DYNAMIC_DEFAULT, STATIC, DEFAULT, DYNAMIC_LOGGER, DYNAMIC_CLIENT_METRICS = range(1, 8)
SET, DELETE, APPEND, SUBTRACT = range(4)


def describe(wire, kind, name, keys=None, *, version=4, **fields):
    requested = {"resource_type": kind, "resource_name": name, "configuration_keys": keys}
    [result] = wire.call("describe_configs", version, resources=[requested], **fields).results
    return result


def values(wire, kind, name, *keys):
    result = describe(wire, kind, name, keys or None)
    assert result.error_code == 0, result
    return {config.name: (config.value, config.config_source) for config in result.configs}


def alter(wire, kind, name, *changes, version=1, **fields):
    configs = [{"name": key, "config_operation": op, "value": value} for key, op, value in changes]
    requested = {"resource_type": kind, "resource_name": name, "configs": configs}
    [response] = wire.call("incremental_alter_configs", version, resources=[requested], **fields).responses
    return int(response.error_code)


@pytest.mark.parametrize("version", range(1, 5))
def test_a_topic_tells_all_its_settings(wire, version):
    name = wire.create_topic(retention_ms="77")
    result = describe(wire, TOPIC, name, version=version, include_synonyms=True, include_documentation=True)
    assert (result.error_code, result.resource_name) == (0, name)
    configs = {config.name: config for config in result.configs}
    assert len(configs) > 25
    retention = configs["retention.ms"]
    assert (retention.value, retention.config_source, retention.read_only) == ("77", DYNAMIC_TOPIC, False)
    assert ("retention.ms", DYNAMIC_TOPIC) in [(s.name, s.source) for s in retention.synonyms]
    segment = configs["segment.bytes"]
    assert segment.config_source == DEFAULT
    assert [(s.name, s.source) for s in segment.synonyms] == [("log.segment.bytes", DEFAULT)]
    if version >= 3:
        assert retention.config_type == 5
        assert configs["cleanup.policy"].config_type == 7
        assert all(config.documentation for config in result.configs)


def test_only_what_is_asked_for_is_told(wire):
    name = wire.create_topic()
    result = describe(wire, TOPIC, name, ["segment.bytes", "no.such.setting"])
    [config] = result.configs
    assert (config.name, config.value, config.synonyms, config.documentation) == (
        "segment.bytes",
        "1073741824",
        (),
        None,
    )


def test_a_broker_tells_all_its_settings(klamm, wire):
    result = describe(wire, BROKER, "1")
    configs = {config.name: config for config in result.configs}
    assert len(configs) > 200
    assert configs["node.id"].value == "1"
    assert configs["log.dirs"].value == str(klamm.data)
    assert configs["log.dirs"].config_source == STATIC
    assert configs["log.dirs"].read_only is True
    assert configs["log.retention.ms"].read_only is False
    assert all(config.value is None for config in result.configs if config.is_sensitive)


def test_resources_that_cannot_be_described(wire):
    assert describe(wire, TOPIC, "no-such-topic").error_code == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION
    assert describe(wire, TOPIC, "a b").error_code == ErrorCode.INVALID_TOPIC_EXCEPTION
    assert describe(wire, BROKER, "9").error_code == ErrorCode.INVALID_REQUEST
    assert describe(wire, BROKER, "x").error_code == ErrorCode.INVALID_REQUEST
    assert describe(wire, 99, "x").error_code == ErrorCode.INVALID_REQUEST


@pytest.mark.parametrize("version", [0, 1])
def test_settings_are_set_and_taken_back(wire, version):
    name = wire.create_topic()
    assert alter(wire, TOPIC, name, ("retention.ms", SET, "5"), version=version) == 0
    assert values(wire, TOPIC, name, "retention.ms") == {"retention.ms": ("5", DYNAMIC_TOPIC)}
    assert alter(wire, TOPIC, name, ("retention.ms", DELETE, None), version=version) == 0
    assert values(wire, TOPIC, name, "retention.ms") == {"retention.ms": ("604800000", DEFAULT)}


def test_lists_are_added_to_and_taken_from(wire):
    name = wire.create_topic()
    assert alter(wire, TOPIC, name, ("cleanup.policy", APPEND, "compact")) == 0
    assert values(wire, TOPIC, name, "cleanup.policy")["cleanup.policy"][0] == "delete,compact"
    assert alter(wire, TOPIC, name, ("cleanup.policy", SUBTRACT, "delete")) == 0
    assert values(wire, TOPIC, name, "cleanup.policy")["cleanup.policy"][0] == "compact"
    assert alter(wire, TOPIC, name, ("retention.ms", APPEND, "5")) == ErrorCode.INVALID_CONFIG


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ([("retention.ms", SET, "x")], ErrorCode.INVALID_CONFIG),
        ([("no.such.setting", SET, "1")], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", SET, "1"), ("retention.ms", SET, "2")], ErrorCode.INVALID_REQUEST),
        ([("retention.ms", SET, None)], ErrorCode.INVALID_CONFIG),
        ([("retention.ms", 9, "1")], ErrorCode.INVALID_REQUEST),
    ],
    ids=str,
)
def test_a_change_that_cannot_be_is_refused_whole(wire, changes, error):
    name = wire.create_topic()
    code = alter(wire, TOPIC, name, ("segment.ms", SET, "9999"), *changes)
    assert code in (error, ErrorCode.INVALID_REQUEST)
    assert values(wire, TOPIC, name, "segment.ms") == {"segment.ms": ("604800000", DEFAULT)}


def test_changes_can_be_rehearsed(wire):
    name = wire.create_topic()
    assert alter(wire, TOPIC, name, ("retention.ms", SET, "5"), validate_only=True) == 0
    assert alter(wire, TOPIC, name, ("retention.ms", SET, "x"), validate_only=True) == ErrorCode.INVALID_CONFIG
    assert values(wire, TOPIC, name, "retention.ms")["retention.ms"] == ("604800000", DEFAULT)


def test_unknown_resources_are_not_altered(wire):
    assert alter(wire, TOPIC, "no-such-topic", ("retention.ms", SET, "5")) == ErrorCode.UNKNOWN_TOPIC_OR_PARTITION


@pytest.mark.parametrize("version", range(3))
def test_the_old_way_replaces_everything(wire, version):
    name = wire.create_topic(retention_ms="5", segment_ms="6000")
    requested = {"resource_type": TOPIC, "resource_name": name, "configs": [{"name": "segment.ms", "value": "7000"}]}
    [response] = wire.call("alter_configs", version, resources=[requested]).responses
    assert response.error_code == 0
    configs = values(wire, TOPIC, name, "retention.ms", "segment.ms")
    assert configs == {"retention.ms": ("604800000", DEFAULT), "segment.ms": ("7000", DYNAMIC_TOPIC)}


def test_a_new_limit_holds_at_once_on_both_ways_of_produce(wire):
    name = wire.create_topic()
    large = batch(b"x" * 2000)
    assert [int(wire.produce(name, large).error_code) for _ in range(3)] == [0, 0, 0]
    assert alter(wire, TOPIC, name, ("max.message.bytes", SET, "1000")) == 0
    assert wire.produce(name, large).error_code == ErrorCode.MESSAGE_TOO_LARGE
    assert alter(wire, TOPIC, name, ("max.message.bytes", DELETE, None)) == 0
    assert wire.produce(name, large).error_code == 0


def test_a_new_timestamp_type_holds_at_once_on_both_ways_of_produce(wire):
    name = wire.create_topic()
    for _ in range(3):
        assert wire.produce(name, batch(b"x", timestamp=5)).log_append_time is None
    assert alter(wire, TOPIC, name, ("message.timestamp.type", SET, "LogAppendTime")) == 0
    stamped = wire.produce(name, batch(b"x", timestamp=5)).log_append_time
    assert abs(stamped.timestamp() - time.time()) < 60


def test_a_brokers_dynamic_default_shows_as_a_topics_source(wire):
    name = wire.create_topic()
    assert alter(wire, BROKER, "", ("log.segment.delete.delay.ms", SET, "59000")) == 0
    try:
        assert values(wire, TOPIC, name, "file.delete.delay.ms")["file.delete.delay.ms"] == ("59000", DYNAMIC_DEFAULT)
        assert values(wire, BROKER, "")["log.segment.delete.delay.ms"] == ("59000", DYNAMIC_DEFAULT)
    finally:
        assert alter(wire, BROKER, "", ("log.segment.delete.delay.ms", DELETE, None)) == 0


def test_read_only_broker_settings_stay(wire):
    assert alter(wire, BROKER, "1", ("log.dirs", SET, "/elsewhere")) in (
        ErrorCode.INVALID_CONFIG,
        ErrorCode.INVALID_REQUEST,
    )
    assert alter(wire, BROKER, "1", ("node.id", SET, "7")) in (ErrorCode.INVALID_CONFIG, ErrorCode.INVALID_REQUEST)


def test_group_settings(wire):
    assert alter(wire, GROUP, "my-group", ("consumer.session.timeout.ms", SET, "50000")) == 0
    configs = values(wire, GROUP, "my-group", "consumer.session.timeout.ms")
    assert configs["consumer.session.timeout.ms"][0] == "50000"


def resources(wire, kinds, version=1):
    fields = {"resource_types": kinds} if version else {}
    reply = wire.call("list_config_resources", version, **fields)
    if reply.error_code:
        return int(reply.error_code)
    return {
        (getattr(resource, "resource_type", CLIENT_METRICS), resource.resource_name)
        for resource in reply.config_resources
    }


def test_what_can_have_settings_is_listed(wire):
    name, metrics = wire.create_topic(), unique("metrics")
    assert alter(wire, GROUP, "listed-group", ("consumer.session.timeout.ms", SET, "50000")) == 0
    assert alter(wire, CLIENT_METRICS, metrics, ("interval.ms", SET, "1000")) == 0
    assert (GROUP, "listed-group") in resources(wire, [GROUP])
    assert {kind for kind, _ in resources(wire, [GROUP])} == {GROUP}
    assert resources(wire, [BROKER, BROKER_LOGGER]) == {(BROKER, "1"), (BROKER_LOGGER, "1")}
    everything = {
        (TOPIC, name),
        (BROKER, "1"),
        (BROKER_LOGGER, "1"),
        (GROUP, "listed-group"),
        (CLIENT_METRICS, metrics),
    }
    assert everything <= resources(wire, [])
    assert (CLIENT_METRICS, metrics) in resources(wire, None, version=0)
    assert resources(wire, [77]) == 35
    assert alter(wire, CLIENT_METRICS, metrics, ("interval.ms", DELETE, None)) == 0
    assert (CLIENT_METRICS, metrics) not in resources(wire, [])


def test_client_metrics_settings(wire):
    metrics = unique("metrics")
    assert alter(wire, CLIENT_METRICS, metrics, ("interval.ms", SET, "1000")) == 0
    configs = values(wire, CLIENT_METRICS, metrics)
    assert configs["interval.ms"] == ("1000", DYNAMIC_CLIENT_METRICS)
    assert configs["match"] == ("", DEFAULT)
    assert describe(wire, CLIENT_METRICS, "").error_code == ErrorCode.INVALID_REQUEST


def test_a_brokers_loggers_are_its_own_to_change(wire):
    def level():
        return values(wire, BROKER_LOGGER, "1")

    before, _ = level()["root"]
    try:
        assert alter(wire, BROKER_LOGGER, "1", ("root", SET, "ERROR"), validate_only=True) == 0
        assert level() == {"root": (before, DYNAMIC_LOGGER)}
        assert alter(wire, BROKER_LOGGER, "1", ("root", SET, "WARN")) == 0
        assert level() == {"root": ("WARN", DYNAMIC_LOGGER)}
        assert alter(wire, BROKER_LOGGER, "1", ("root", SET, "LOUD")) == ErrorCode.INVALID_CONFIG
        assert alter(wire, BROKER_LOGGER, "1", ("no.such.logger", SET, "INFO")) == ErrorCode.INVALID_CONFIG
        assert alter(wire, BROKER_LOGGER, "1", ("root", DELETE, None)) == ErrorCode.INVALID_REQUEST
        assert alter(wire, BROKER_LOGGER, "1", ("root", APPEND, "INFO")) == ErrorCode.INVALID_REQUEST
        assert alter(wire, BROKER_LOGGER, "2", ("root", SET, "INFO")) == ErrorCode.INVALID_REQUEST
        assert describe(wire, BROKER_LOGGER, "2").error_code == ErrorCode.INVALID_REQUEST
        assert level() == {"root": ("WARN", DYNAMIC_LOGGER)}
    finally:
        assert alter(wire, BROKER_LOGGER, "1", ("root", SET, before)) == 0


def test_loggers_beside_other_settings_in_one_request(wire):
    name = wire.create_topic()
    before, _ = values(wire, BROKER_LOGGER, "1")["root"]
    change = {"config_operation": SET}
    requested = [
        {"resource_type": TOPIC, "resource_name": name, "configs": [{**change, "name": "retention.ms", "value": "7"}]},
        {
            "resource_type": BROKER_LOGGER,
            "resource_name": "1",
            "configs": [{**change, "name": "root", "value": before}],
        },
    ]
    responses = wire.call("incremental_alter_configs", 1, resources=requested).responses
    assert {(response.resource_type, int(response.error_code)) for response in responses} == {
        (TOPIC, 0),
        (BROKER_LOGGER, 0),
    }
    assert values(wire, TOPIC, name, "retention.ms")["retention.ms"] == ("7", DYNAMIC_TOPIC)
