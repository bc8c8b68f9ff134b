"""Which settings are in force for a topic: its own, else the brokers' dynamic ones, else the file's, else defaults."""

from collections.abc import Mapping

from klamm.metadata.image import MetadataImage
from klamm.model.config_describe import effective_broker
from klamm.model.topic_configs import topic_defaults
from klamm.replication.settings import TopicSettings
from klamm.storage import LogConfig


class TopicSettingsResolver:
    """Resolves settings against an image; equal settings share one object."""

    def __init__(self, node_id: int, static: Mapping[str, str]) -> None:
        self._node_id = node_id
        self._static = static
        self._layers: tuple[Mapping[str, str], Mapping[str, str]] | None = None
        self._defaults: dict[str, str] = {}
        self._known: dict[frozenset[tuple[str, str]], TopicSettings] = {}

    def resolve(self, image: MetadataImage, topic: str) -> TopicSettings:
        """The settings of `topic` as of `image`."""
        layers = (image.broker_configs(self._node_id), image.broker_configs(None))
        if layers != self._layers:
            self._layers = layers
            self._defaults = dict(topic_defaults(effective_broker(*layers, self._static)))
            self._known.clear()
        overrides = image.topic_configs(topic)
        key = frozenset(overrides.items())
        known = self._known.get(key)
        if known is None:
            values = {**self._defaults, **overrides}
            known = TopicSettings(
                LogConfig.from_topic_config(values),
                int(values["min.insync.replicas"]),
                _names(values.get("leader.replication.throttled.replicas")),
                _names(values.get("follower.replication.throttled.replicas")),
            )
            if len(self._known) < 1000:
                self._known[key] = known
        return known


def _names(text: str | None) -> frozenset[str]:
    return frozenset(part.strip() for part in (text or "").split(",") if part.strip())
