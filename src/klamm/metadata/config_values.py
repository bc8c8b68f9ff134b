"""From the text of a config to the value the cluster acts on.

The text is read once, when its record is replayed, by the same `ConfigKey.parse` that checked the request; an image
carries both. A text that cannot be read (an older release may have written it) has no value: what would be in force
without it counts.
"""

import contextlib
from collections.abc import Callable, Iterator, Mapping
from typing import Final

from klamm.metadata.image import ConfigResource, MetadataImage, ResourceType
from klamm.model.broker_configs import broker_key
from klamm.model.config import ConfigKey, Value
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
    """The catalogue's entry for a config of `resource`; None for the configs of plugins."""
    lookup = _KEYS.get(resource.type)
    return lookup(name) if lookup is not None else None


def with_value(
    resource: ConfigResource, values: Mapping[str, Value], name: str, text: str | None
) -> Mapping[str, Value]:
    """`values` of a resource after one of its configs was set, or removed where `text` is None."""
    changed = {known: value for known, value in values.items() if known != name}
    key = config_key(resource, name) if text is not None else None
    if key is not None:
        with contextlib.suppress(ConfigError):  # `unreadable_configs` tells of it
            changed[name] = key.parse(text)
    return changed


def unreadable_configs(
    image: MetadataImage, changed: Mapping[ConfigResource, Mapping[str, str | None]]
) -> Iterator[tuple[ConfigResource, str, str]]:
    """Of the configs that changed, those whose text has no value, and why."""
    for resource, texts in changed.items():
        values = image.values.get(resource, {})
        for name, text in texts.items():
            key = config_key(resource, name) if text is not None and name not in values else None
            if key is not None:
                try:
                    key.parse(text)
                except ConfigError as error:
                    yield resource, name, str(error)
