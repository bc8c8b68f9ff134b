"""The effective configs of this broker: its own dynamic ones, else the cluster-wide ones, else the file's."""

from collections.abc import Mapping

from klamm.metadata.image import MetadataImage
from klamm.model.broker_configs import BROKER_CONFIGS, read_broker_values
from klamm.model.config import SettingValue
from klamm.model.config_describe import effective_broker


class BrokerSettings:
    """Config values by image; those of the last image are cached, because few images change a config."""

    def __init__(self, node_id: int, static: Mapping[str, str]) -> None:
        self._node_id = node_id
        self._static = read_broker_values(static)
        self._layers: tuple[Mapping[str, SettingValue], Mapping[str, SettingValue]] | None = None
        self._values: Mapping[str, SettingValue] = {}

    def values(self, image: MetadataImage) -> Mapping[str, SettingValue]:
        """Return all values that are set anywhere; the same object as long as none changes."""
        layers = (image.broker_values(self._node_id), image.broker_values(None))
        # The result keeps its identity while nothing changes, by which `TopicSettingsResolver` detects a change.
        if layers != self._layers:
            self._layers = layers
            self._values = effective_broker(*layers, self._static)
        return self._values

    def value(self, image: MetadataImage, name: str) -> SettingValue:
        """Return the value of a config, or its default."""
        value = self.values(image).get(name)
        return BROKER_CONFIGS.default(name) if value is None else value

    def integer(self, image: MetadataImage, name: str) -> int:
        """Return the value of an integer config."""
        value = self.value(image, name)
        assert isinstance(value, int)
        return value
