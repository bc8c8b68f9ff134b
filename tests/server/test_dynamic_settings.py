"""Settings that change while a node runs: whatever the check accepts can be applied, and any can be removed again.

Older tests set values as people write them and never removed what a cluster writes itself; a check and the code that
acts on a setting each read the text in their own way, and no test put the same odd text through both.
"""

import asyncio
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from harness.inprocess import NodeThread
from harness.wire import Wire, batch
from klamm.controller.config_validation import CatalogValidator
from klamm.coordinator.groups.consumer.config import ConsumerGroupConfig
from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import EMPTY_IMAGE, MetadataImage
from klamm.metadata.records import encode_record
from klamm.model.broker_configs import BROKER_CONFIGS
from klamm.model.config import ConfigKey, ConfigType, UpdateMode
from klamm.model.config_describe import describe_broker, describe_group, describe_topic
from klamm.model.config_resources import ResourceType
from klamm.model.errors import ConfigError
from klamm.model.group_configs import GROUP_CONFIGS
from klamm.model.topic_configs import TOPIC_CONFIGS
from klamm.protocol.messages.metadata_records import ConfigRecord, TopicRecord
from klamm.server.node import KlammNode
from klamm.server.settings.broker_settings import BrokerSettings
from klamm.server.settings.topic_settings import TopicSettingsResolver

VALIDATOR = CatalogValidator()
DYNAMIC = [key for key in BROKER_CONFIGS if key.update_mode is not UpdateMode.READ_ONLY]
Case = tuple[ResourceType, str, ConfigKey]
CASES: list[Case] = (
    [(ResourceType.BROKER, "", key) for key in DYNAMIC if key.update_mode is UpdateMode.CLUSTER_WIDE]
    + [(ResourceType.BROKER, "1", key) for key in DYNAMIC]
    + [(ResourceType.TOPIC, "orders", key) for key in TOPIC_CONFIGS]
    + [(ResourceType.GROUP, "shop", key) for key in GROUP_CONFIGS]
)
ODD_NUMBERS = ["+5", "-1", "0", "٣", "1e3", "0x10", "1_000", "NaN", "-Infinity", "1d", str(2**31 - 1), str(2**63 - 1)]
ODD_WORDS = ["TRUE", "False", "", ",", "a,,b", "delete , compact", "*", "0:1, 1:2", "none", "ZSTD", "producer"]


def texts(key: ConfigKey) -> st.SearchStrategy[str]:
    """What people, programs and rogues may write for a setting."""
    written = [*ODD_NUMBERS, *ODD_WORDS, key.default_text or "", *(key.rule.text.split(", ") if key.rule else ())]
    value = st.one_of(st.sampled_from(written), st.integers(-(2**64), 2**64).map(str), st.text(max_size=8))
    padding = st.text(st.sampled_from("\x00\x01\x1f \t\n\u00a0"), max_size=2)
    return st.builds(lambda before, text, after: before + text + after, padding, value, padding)


def accepts(kind: ResourceType, name: str, key: ConfigKey, text: str) -> bool:
    try:
        if kind is ResourceType.TOPIC:
            VALIDATOR.validate_topic({key.name: text}, ({}, {}))
        elif kind is ResourceType.GROUP:
            VALIDATOR.validate_group({key.name: text})
        else:
            VALIDATOR.validate_broker({key.name: text}, all_brokers=not name)
    except ConfigError:
        return False
    return True


def changed(image: MetadataImage, *records: ConfigRecord | TopicRecord) -> MetadataImage:
    delta = MetadataDelta(image)
    delta.replay_all(records)
    after = delta.apply(image.provenance.offset + 1, 0)
    after.check()
    return after


def applied(image: MetadataImage) -> object:
    """Everything a node makes of an image's configs; raises where one of them cannot be applied."""
    broker = BrokerSettings(1, {"node.id": "1"})
    own, cluster, static = image.broker_configs(1), image.broker_configs(None), {"node.id": "1"}
    groups = ConsumerGroupConfig()
    values = image.group_values("shop")
    return (
        TopicSettingsResolver(broker).resolve(image, "orders"),
        [broker.value(image, key.name) for key in DYNAMIC],
        groups.session_timeout_of(values),
        groups.heartbeat_interval_of(values),
        groups.assignment_interval_of(values, image.broker_values(None)),
        VALIDATOR.inherited_by_topics("min.insync.replicas", (image.broker_values(1), image.broker_values(None))),
        [config.value for config in describe_topic(image.topic_configs("orders"), own, cluster, static)],
        [config.value for config in describe_broker(own, cluster, static)],
        [config.value for config in describe_group(image.group_configs("shop"), own, cluster, static)],
    )


EMPTY = changed(EMPTY_IMAGE, TopicRecord(name="orders", topic_id=bytes(15) + b"\7"))


def record_of(case: Case, text: str | None) -> ConfigRecord:
    kind, name, key = case
    return ConfigRecord(resource_type=kind, resource_name=name, name=key.name, value=text)


def check_applied(case: Case, text: str) -> None:
    """One setting is written, applied, and removed again: then all is as before."""
    kind, name, key = case
    after = changed(EMPTY, record_of(case, text))
    if accepts(kind, name, key, text):
        assert key.name in after.values[kind, name], f"{key.name}={text!r} is accepted and has no value"
    applied(after)
    removed = changed(after, record_of(case, None))
    assert (removed.configs, removed.values) == (EMPTY.configs, EMPTY.values)


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(CASES).flatmap(lambda case: st.tuples(st.just(case), texts(case[2]))))
def test_whatever_the_check_accepts_is_applied_and_removed_again(written: tuple[Case, str]):
    check_applied(*written)


def test_every_dynamic_setting_can_be_written_and_removed():
    before = applied(EMPTY)
    for case in CASES:
        check_applied(case, f" {case[2].default_text or ''}\x01")
    assert applied(EMPTY) == before
    assert {key.type for _, _, key in CASES} >= {ConfigType.INT, ConfigType.LONG, ConfigType.LIST, ConfigType.BOOLEAN}


RUINED = (
    ConfigRecord(resource_type=4, resource_name="", name="min.insync.replicas", value=None),
    ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value="3600000\x01"),
    ConfigRecord(resource_type=4, resource_name="1", name="log.segment.bytes", value="plenty"),
    ConfigRecord(resource_type=4, resource_name="", name="message.max.bytes", value="large"),
    ConfigRecord(resource_type=4, resource_name="", name="producer.id.expiration.ms", value="?"),
    ConfigRecord(resource_type=4, resource_name="", name="leader.replication.throttled.rate", value="slow"),
    ConfigRecord(resource_type=2, resource_name="orders", name="retention.ms", value="for ever"),
    ConfigRecord(resource_type=32, resource_name="shop", name="consumer.session.timeout.ms", value="long"),
)
"""What an earlier release let into its metadata log."""


def write_down(node: KlammNode) -> "asyncio.Future[int]":
    """Records no check has seen, straight into the metadata log."""
    return node.services.raft.append([encode_record(record) for record in RUINED])


def serves(wire: Wire) -> None:
    topic = wire.create_topic()
    assert wire.produce(topic, batch(b"new")).error_code == 0
    assert wire.values(topic) == [b"new"]


def test_a_folder_with_configs_that_cannot_be_read_starts_and_serves(tmp_path: Path, capfd: pytest.CaptureFixture[str]):
    with NodeThread(tmp_path) as thread, Wire(thread.port) as wire:
        wire.create_topic("orders")
        wire.produce("orders", batch(b"old"))
        offset = thread.run_until(write_down)
        thread.run_until(lambda _: thread.node.services.controller.wait_applied(offset))
        serves(wire)
    with NodeThread(tmp_path) as thread, Wire(thread.port) as wire:
        serves(wire)
        assert wire.values("orders") == [b"old"]
        assert wire.produce("orders", batch(b"more")).error_code == 0
        requested = [
            {"resource_type": kind, "resource_name": name} for kind, name in ((4, "1"), (4, ""), (2, "orders"))
        ]
        results = wire.call("describe_configs", 4, resources=requested).results
        assert [result.error_code for result in results] == [0, 0, 0]
        [retention] = [config for config in results[2].configs if config.name == "retention.ms"]
        assert retention.value == "for ever"
    lines = [line for line in capfd.readouterr().err.splitlines() if "config ignored" in line]
    assert any("log.segment.bytes" in line and "plenty" in line for line in lines)
    assert any("retention.ms" in line and "orders" in line for line in lines)
