"""Values about configs of topics, brokers and groups."""

from dataclasses import dataclass
from enum import IntEnum

from klamm.model.config_sources import ConfigSource, ConfigSynonym


@dataclass(frozen=True, slots=True)
class ConfigEntry:
    """One setting."""

    name: str
    value: str | None
    source: ConfigSource
    read_only: bool = False
    sensitive: bool = False
    synonyms: tuple[ConfigSynonym, ...] = ()
    type: int = 0
    documentation: str | None = None

    @property
    def is_default(self) -> bool:
        """Whether it has its default value."""
        return self.source is ConfigSource.DEFAULT_CONFIG


class AlterOp(IntEnum):
    """The operation on a setting."""

    SET = 0
    DELETE = 1
    APPEND = 2
    SUBTRACT = 3
