"""The effective configs of a topic: its own, else the broker's dynamic ones, else the file's, else defaults."""

from collections.abc import Mapping

from klamm.metadata.image import MetadataImage
from klamm.model.config import SettingValue
from klamm.model.topic_configs import TOPIC_CONFIGS, topic_defaults
from klamm.replication.settings import TopicSettings
from klamm.server.settings.broker_settings import BrokerSettings
from klamm.storage import LogConfig


class TopicSettingsResolver:
    """Resolves configs against an image; topics with equal configs share one object."""

    def __init__(self, broker: BrokerSettings) -> None:
        self._broker = broker
        self._inherited: Mapping[str, SettingValue] | None = None
        self._defaults: dict[str, SettingValue] = {}
        self._cache: dict[frozenset[tuple[str, SettingValue]], TopicSettings] = {}

    def resolve(self, image: MetadataImage, topic: str) -> TopicSettings:
        """Return the configs of `topic` in `image`."""
        inherited = self._broker.values(image)
        if inherited is not self._inherited:
            self._inherited = inherited
            self._defaults = topic_defaults(inherited)
            # A changed default changes all topics that do not override it.
            self._cache.clear()
        overrides = image.topic_values(topic)
        # By value: ten thousand topics usually have a handful of distinct configs.
        key = frozenset(overrides.items())
        settings = self._cache.get(key)
        if settings is None:
            settings = _build_settings({**self._defaults, **overrides})
            # Bounded: clients choose the overrides.
            if len(self._cache) < 1000:
                self._cache[key] = settings
        return settings


def _build_settings(values: Mapping[str, SettingValue]) -> TopicSettings:
    min_isr = values.get("min.insync.replicas", TOPIC_CONFIGS.default("min.insync.replicas"))
    assert isinstance(min_isr, int)
    return TopicSettings(
        LogConfig.from_topic_config(values),
        min_isr,
        _read_replicas(values.get("leader.replication.throttled.replicas")),
        _read_replicas(values.get("follower.replication.throttled.replicas")),
    )


def _read_replicas(value: SettingValue) -> frozenset[str]:
    return frozenset(value) if isinstance(value, tuple) else frozenset()
