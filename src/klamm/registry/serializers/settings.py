"""Settings of serializers, by the names of Confluent's; as a mapping with those names, or as keywords."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from klamm.model.errors import ConfigError
from klamm.registry.client import Registry, parse_settings, shared_registry
from klamm.registry.rules import RuleExecutors
from klamm.registry.serializers.subjects import SubjectNameStrategy, find_strategy

RegistryLike = str | Mapping[str, Any] | Registry
"""A URL, settings (those of serializers among them), or a client."""

PREFIX: Final = "prefix"
HEADER: Final = "header"
_FRAMINGS: Final = {
    "prefix": PREFIX,
    "header": HEADER,
    # Names of Java's classes.
    "prefixschemaidserializer": PREFIX,
    "headerschemaidserializer": HEADER,
}
_NAMES: Final = (
    "auto.register.schemas",
    "normalize.schemas",
    "use.latest.version",
    "use.latest.with.metadata",
    "use.schema.id",
    "subject.name.strategy",
    "key.subject.name.strategy",
    "value.subject.name.strategy",
    "schema.id.serializer",
    "key.schema.id.serializer",
    "value.schema.id.serializer",
    "rule.executors",
)


class SerializerSettings(NamedTuple):
    """What a serializer or deserializer does about schemas."""

    auto_register: bool
    normalize: bool
    use_latest: bool
    latest_metadata: Mapping[str, str] | None
    schema_id: int | None
    strategies: Mapping[str, SubjectNameStrategy]
    """By part of the record."""
    framings: Mapping[str, str]
    """By part of the record: prefix or header."""
    executors: RuleExecutors
    """Functions that execute rules, by type."""


def read_settings(
    registry: RegistryLike, config: Mapping[str, Any] | None, keywords: Mapping[str, Any]
) -> tuple[Registry, SerializerSettings]:
    """Return the client of the registry and the settings; ConfigError for one that is unknown or has a bad value."""
    settings: dict[str, Any] = {**(config or {}), **{name.replace("_", "."): value for name, value in keywords.items()}}
    if isinstance(registry, Mapping):
        # Java's serializers have one map for all.
        settings = {name: value for name, value in registry.items() if name in _NAMES} | settings
        registry = {name: value for name, value in registry.items() if name not in _NAMES}
    for name in settings:
        if name not in _NAMES:
            raise ConfigError(f"{name} is not a setting of a serializer; there are {', '.join(_NAMES)}")
    client = registry if isinstance(registry, Registry) else shared_registry(parse_settings(registry))
    return client, _parse(settings)


def _parse(settings: Mapping[str, Any]) -> SerializerSettings:
    metadata = settings.get("use.latest.with.metadata")
    schema_id = settings.get("use.schema.id")
    if metadata is not None and not isinstance(metadata, Mapping):
        raise ConfigError(f"use.latest.with.metadata={metadata!r} is not a mapping")
    use_latest = _flag(settings, "use.latest.version", default=False)
    chooses = [
        name
        for name, is_set in (
            ("use.latest.version", use_latest),
            ("use.latest.with.metadata", metadata is not None),
            ("use.schema.id", schema_id is not None),
        )
        if is_set
    ]
    # A serializer that takes its schema from the registry has none to register.
    auto_register = _flag(settings, "auto.register.schemas", default=not chooses)
    if auto_register and chooses:
        raise ConfigError(f"auto.register.schemas and {chooses[0]} exclude each other; set one of them")
    if len(chooses) > 1:
        raise ConfigError(f"{' and '.join(chooses)} exclude each other; set one of them")
    return SerializerSettings(
        auto_register,
        _flag(settings, "normalize.schemas", default=False),
        use_latest,
        metadata,
        None if schema_id is None else int(schema_id),
        {part: _strategy(settings, part) for part in ("key", "value")},
        {part: _framing(settings, part) for part in ("key", "value")},
        _executors(settings.get("rule.executors")),
    )


def _executors(given: Any) -> RuleExecutors:
    if given is None:
        return {}
    if not isinstance(given, Mapping) or not all(callable(executor) for executor in given.values()):
        raise ConfigError("rule.executors is a mapping of types of rules to functions: {'ENCRYPT': encrypt}")
    return {str(name).upper(): executor for name, executor in given.items()}


def _flag(settings: Mapping[str, Any], name: str, *, default: bool) -> bool:
    value = settings.get(name)
    if value is None:
        return default
    if isinstance(value, str) and value.lower() in ("true", "false"):
        return value.lower() == "true"
    if not isinstance(value, bool):
        raise ConfigError(f"{name}={value!r}; write true or false")
    return value


def _strategy(settings: Mapping[str, Any], part: str) -> SubjectNameStrategy:
    for name in (f"{part}.subject.name.strategy", "subject.name.strategy"):
        if settings.get(name) is not None:
            return find_strategy(settings[name], name)
    return find_strategy("topic", "subject.name.strategy")


def _framing(settings: Mapping[str, Any], part: str) -> str:
    for name in (f"{part}.schema.id.serializer", "schema.id.serializer"):
        if settings.get(name) is not None:
            word = str(settings[name]).rpartition(".")[2].lower()
            if word not in _FRAMINGS:
                raise ConfigError(f"{name}={settings[name]}; there are prefix and header")
            return _FRAMINGS[word]
    return PREFIX
