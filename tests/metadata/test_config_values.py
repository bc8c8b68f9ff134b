"""The values of configs: read once when their record is replayed, gone with their text."""

import pytest

from klamm.metadata import ConfigResource, ResourceType
from klamm.metadata.config_values import unreadable_configs
from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import EMPTY_IMAGE, MetadataImage
from klamm.metadata.loader import MetadataLoader
from klamm.protocol.messages.metadata_records import ConfigRecord

ALL_BROKERS = ConfigResource(ResourceType.BROKER, "")


def replayed(image: MetadataImage, **configs: str | None) -> tuple[MetadataDelta, MetadataImage]:
    delta = MetadataDelta(image)
    for name, text in configs.items():
        delta.replay(ConfigRecord(resource_type=4, resource_name="", name=name.replace("_", "."), value=text))
    changed = delta.apply(image.provenance.offset + 1, 0)
    changed.check()
    return delta, changed


def test_a_value_comes_and_goes_with_its_text():
    _, image = replayed(EMPTY_IMAGE, log_retention_ms="5\x01", log_cleanup_policy="compact,delete")
    assert image.broker_values(None) == {"log.retention.ms": 5, "log.cleanup.policy": ("compact", "delete")}
    assert image.broker_configs(None)["log.retention.ms"] == "5\x01"
    _, image = replayed(image, log_retention_ms=None)
    assert image.broker_values(None) == {"log.cleanup.policy": ("compact", "delete")}
    _, image = replayed(image, log_cleanup_policy=None)
    assert (image.configs, image.values) == ({}, {})


def test_a_text_that_cannot_be_read_is_kept_without_a_value_and_told():
    _, image = replayed(EMPTY_IMAGE, log_retention_ms="5")
    delta, image = replayed(image, log_retention_ms="soon", some_plugins_own="anything")
    assert image.broker_values(None) == {}
    assert image.broker_configs(None) == {"log.retention.ms": "soon", "some.plugins.own": "anything"}
    [(resource, name, reason)] = unreadable_configs(image, delta.configs_changed)
    assert (resource, name) == (ALL_BROKERS, "log.retention.ms")
    assert "log.retention.ms=soon" in reason


def test_a_snapshot_leads_to_the_same_values():
    _, image = replayed(EMPTY_IMAGE, log_retention_ms="+7 ", log_segment_bytes="soon")
    rebuilt = MetadataDelta(EMPTY_IMAGE)
    rebuilt.replay_all(image.to_records())
    again = rebuilt.apply(*image.provenance)
    assert (again.configs, again.values) == (image.configs, image.values)
    delta = MetadataDelta.between(EMPTY_IMAGE, again)
    assert [name for _, name, _ in unreadable_configs(again, delta.configs_changed)] == ["log.segment.bytes"]


class _Failing:
    def on_metadata_update(self, delta: MetadataDelta, image: MetadataImage) -> None:
        raise RuntimeError("cannot follow")


class _Following:
    def __init__(self) -> None:
        self.images: list[MetadataImage] = []

    def on_metadata_update(self, _delta: MetadataDelta, image: MetadataImage) -> None:
        self.images.append(image)


def test_a_publisher_that_fails_does_not_stop_the_others(capfd: pytest.CaptureFixture[str]):
    """Older tests had publishers that never fail; one that did took the whole quorum member down."""
    following = _Following()
    loader = MetadataLoader([_Failing(), following])
    loader.load([ConfigRecord(resource_type=4, resource_name="", name="log.retention.ms", value="5")], 0, 0)
    assert following.images == [loader.image]
    loader.add_publisher(_Failing())
    assert "metadata publisher failed" in capfd.readouterr().err
