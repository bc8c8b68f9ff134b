"""Client settings from the command line, a context or a file, and which kind of client each belongs to.

`-X` may name a setting of any client; one that no client has is refused with the nearest right name. A properties file
written for Java's clients is read as Java reads it: unknown names are left out, and what this client cannot do (Java's
own key stores, Kerberos) is refused before a request is sent.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from klamm.model.config import ConfigDef

ADMIN: Final = "admin"
PRODUCER: Final = "producer"
CONSUMER: Final = "consumer"
_CLASSES: Final = frozenset({"key.serializer", "value.serializer", "key.deserializer", "value.deserializer"})
"""Java names classes there; a command has ways of its own."""
_ASSIGNORS: Final = {
    "RangeAssignor": "range",
    "RoundRobinAssignor": "roundrobin",
    "StickyAssignor": "sticky",
    "CooperativeStickyAssignor": "cooperative-sticky",
}


def _definitions() -> dict[str, ConfigDef]:
    from klamm.client.config import ADMIN_CONFIGS, CONSUMER_CONFIGS, PRODUCER_CONFIGS

    return {ADMIN: ADMIN_CONFIGS, PRODUCER: PRODUCER_CONFIGS, CONSUMER: CONSUMER_CONFIGS}


def taken_by(role: str, given: Mapping[str, str]) -> dict[str, str]:
    """Those settings that this kind of client takes; ConfigError for one that no kind has."""
    if not given:
        return {}
    definitions = _definitions()
    for name in given:
        if not any(name in definition for definition in definitions.values()):
            # Raises the ConfigError that suggests the nearest name of the role at hand.
            definitions[role].key(name)
    return {name: value for name, value in given.items() if name in definitions[role]}


def from_java(role: str | None, given: Mapping[str, str]) -> dict[str, str]:
    """Those settings of a file for Java's clients that this kind of client takes (None: any kind), in our words."""
    if not given:
        return {}
    known = [definition for kind, definition in _definitions().items() if role in (None, kind)]
    settings = {
        name: value
        for name, value in given.items()
        if name not in _CLASSES and any(name in definition for definition in known)
    }
    if "partition.assignment.strategy" in settings:
        words = settings["partition.assignment.strategy"].split(",")
        # Java writes class names (org.apache.kafka.clients.consumer.RangeAssignor); this client takes the assignors'
        # short names.
        short = (word.strip().rpartition(".")[2] for word in words)
        settings["partition.assignment.strategy"] = ",".join(_ASSIGNORS.get(word, word) for word in short)
    return settings


def read_properties(file: str) -> dict[str, str]:
    """The entries of a properties file."""
    from klamm.model.properties import parse_properties

    with open(file, encoding="utf-8") as text:
        return {entry.key: entry.value for entry in parse_properties(text.read())}
