"""Which settings are in force for a topic: its own, else the brokers' dynamic ones, else the file's, else defaults."""

from collections.abc import Mapping

from klamm.metadata.image import MetadataImage
from klamm.model.config import Value
from klamm.model.topic_configs import TOPIC_CONFIGS, topic_defaults
from klamm.replication.settings import TopicSettings
from klamm.server.settings.broker_settings import BrokerSettings
from klamm.storage import LogConfig


class TopicSettingsResolver:
    """Resolves settings against an image; equal settings share one object."""

    def __init__(self, broker: BrokerSettings) -> None:
        self._broker = broker
        self._inherited: Mapping[str, Value] | None = None
        self._defaults: dict[str, Value] = {}
        self._known: dict[frozenset[tuple[str, Value]], TopicSettings] = {}

    def resolve(self, image: MetadataImage, topic: str) -> TopicSettings:
        """The settings of `topic` as of `image`."""
        inherited = self._broker.values(image)
        if inherited is not self._inherited:
            self._inherited = inherited
            self._defaults = topic_defaults(inherited)
            self._known.clear()
        overrides = image.topic_values(topic)
        key = frozenset(overrides.items())
        known = self._known.get(key)
        if known is None:
            known = _settings({**self._defaults, **overrides})
            if len(self._known) < 1000:
                self._known[key] = known
        return known


def _settings(values: Mapping[str, Value]) -> TopicSettings:
    min_isr = values.get("min.insync.replicas", TOPIC_CONFIGS.default("min.insync.replicas"))
    assert isinstance(min_isr, int)
    return TopicSettings(
        LogConfig.from_topic_config(values),
        min_isr,
        _replicas(values.get("leader.replication.throttled.replicas")),
        _replicas(values.get("follower.replication.throttled.replicas")),
    )


def _replicas(value: Value) -> frozenset[str]:
    return frozenset(value) if isinstance(value, tuple) else frozenset()
