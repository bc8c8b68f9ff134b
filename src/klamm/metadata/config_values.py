"""Parsing of configs: from the text in a record to the value that takes effect.

A text is parsed once, when its record is replayed, by the same `ConfigKey.parse` that validated the request; an image
holds both. A text that cannot be parsed (an older release may have written it) has no value, as if it were not set.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from klamm.metadata.image import MetadataImage
from klamm.model.broker_configs import broker_key
from klamm.model.config import ConfigKey, SettingValue
from klamm.model.config_resources import ConfigResource, ResourceType
from klamm.model.errors import ConfigError
from klamm.model.group_configs import CLIENT_METRICS_CONFIGS, GROUP_CONFIGS
from klamm.model.topic_configs import TOPIC_CONFIGS

_KEYS: Final[dict[int, Callable[[str], ConfigKey | None]]] = {
    ResourceType.TOPIC: TOPIC_CONFIGS.keys.get,
    ResourceType.BROKER: broker_key,
    ResourceType.GROUP: GROUP_CONFIGS.keys.get,
    ResourceType.CLIENT_METRICS: CLIENT_METRICS_CONFIGS.keys.get,
}


def config_key(resource: ConfigResource, name: str) -> ConfigKey | None:
    """The definition of a config of `resource`; None for the configs of plugins."""
    lookup = _KEYS.get(resource.type)
    return lookup(name) if lookup is not None else None


def with_value(
    resource: ConfigResource, values: Mapping[str, SettingValue], name: str, text: str | None
) -> Mapping[str, SettingValue]:
    """The `values` of a resource after the config `name` was set to `text`, or removed if `text` is None."""
    changed = {other: value for other, value in values.items() if other != name}
    key = config_key(resource, name) if text is not None else None
    if key is not None:
        with contextlib.suppress(ConfigError):  # reported by `unreadable_configs`
            changed[name] = key.parse(text)
    return changed


def unreadable_configs(
    image: MetadataImage, changed: Mapping[ConfigResource, Mapping[str, str | None]]
) -> Iterator[tuple[ConfigResource, str, str]]:
    """The changed configs whose text cannot be parsed, each with the reason."""
    for resource, texts in changed.items():
        values = image.values.get(resource, {})
        for name, text in texts.items():
            key = config_key(resource, name) if text is not None and name not in values else None
            if key is not None:
                try:
                    key.parse(text)
                except ConfigError as error:
                    yield resource, name, str(error)
