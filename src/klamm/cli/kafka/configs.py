"""kafka-configs: dynamic settings of topics, brokers, groups and client metrics; quotas of users, clients and ips."""

from __future__ import annotations

import functools
import re
from typing import TYPE_CHECKING, Final

from klamm.cli.kafka.options import BOOTSTRAP, COMMAND_CONFIG, Flag, Flags, Parsed, Usage, java_integer, one_action
from klamm.cli.kafka.script import ToolFailed, connect, java_error, read_flags, run_check
from klamm.model.config_resources import ResourceType
from klamm.model.errors import KlammError

if TYPE_CHECKING:
    from klamm.client.admin.config_types import ConfigEntry
    from klamm.client.blocking_cluster import BlockingCluster

FLAGS: Final = Flags(
    "kafka-configs",
    BOOTSTRAP,
    Flag("bootstrap-controller", "Controllers to begin with.", "addresses"),
    COMMAND_CONFIG,
    Flag("describe", "Show settings."),
    Flag("alter", "Change settings."),
    Flag("all", "With --describe: unset ones too."),
    Flag("entity-type", "topics, brokers, groups, client-metrics, broker-loggers, users, clients or ips.", "type"),
    Flag("entity-name", "Which of them.", "name"),
    Flag("entity-default", "What all of them share."),
    Flag("add-config", "Settings to set: 'k1=v1,k2=[v1,v2]'", "settings"),
    Flag("add-config-file", "A properties file with settings to set.", "file"),
    Flag("delete-config", "Settings to take away: 'k1,k2'", "names"),
    Flag("topic", "As --entity-type topics --entity-name.", "topic"),
    Flag("broker", "As --entity-type brokers --entity-name.", "number"),
    Flag("broker-defaults", "As --entity-type brokers --entity-default."),
    Flag("broker-logger", "As --entity-type broker-loggers --entity-name.", "number"),
    Flag("group", "As --entity-type groups --entity-name.", "group"),
    Flag("client-metrics", "As --entity-type client-metrics --entity-name.", "name"),
    Flag("user", "As --entity-type users --entity-name.", "user"),
    Flag("user-defaults", "As --entity-type users --entity-default."),
    Flag("client", "As --entity-type clients --entity-name.", "client"),
    Flag("client-defaults", "As --entity-type clients --entity-default."),
    Flag("ip", "As --entity-type ips --entity-name.", "address"),
    Flag("ip-defaults", "As --entity-type ips --entity-default."),
    Flag("force", "Accepted; there are no prompts."),
)
KINDS: Final = {
    "topics": ResourceType.TOPIC,
    "brokers": ResourceType.BROKER,
    "broker-loggers": ResourceType.BROKER_LOGGER,
    "client-metrics": ResourceType.CLIENT_METRICS,
    "groups": ResourceType.GROUP,
}
QUOTAS: Final = {"users": "user", "clients": "client-id", "ips": "ip"}
_SHORT: Final = {
    "topic": "topics",
    "broker": "brokers",
    "broker-logger": "broker-loggers",
    "group": "groups",
    "client-metrics": "client-metrics",
    "user": "users",
    "client": "clients",
    "ip": "ips",
}
# Commas inside of brackets belong to a value: 'k=[a,b]'.
_PAIR = re.compile(r",(?=[^\]]*(?:\[|$))")
Entity = tuple[str, str | None]
"""A type and a name; None stands for what all share, "*" for each there is."""


def main(args: list[str]) -> int:
    """Run kafka-configs."""
    parsed = read_flags(FLAGS, args)
    if parsed is None:
        return 0
    run_check(FLAGS, functools.partial(_check, parsed))
    entities = _entities(parsed)
    if not entities:
        raise ToolFailed("At least one entity type must be specified")
    unknown = [kind for kind, _ in entities if kind not in KINDS and kind not in QUOTAS]
    if unknown:
        valid = "topics, clients, users, brokers, ips, client-metrics, groups, broker-loggers"
        raise ToolFailed(
            f"Invalid entity type {unknown[0]}, the entity type must be one of {valid}"
            " with a --bootstrap-server or --bootstrap-controller argument"
        )
    _check_names(entities, describe=parsed.has("describe"))
    try:
        with connect(parsed) as cluster:
            if entities[0][0] in QUOTAS:
                from klamm.cli.kafka import quotas

                return quotas.run(
                    cluster, entities, _additions(parsed), _deletions(parsed), describe=parsed.has("describe")
                )
            kind, name = entities[0]
            if parsed.has("describe"):
                _describe(cluster, kind, name, everything=parsed.has("all"))
            else:
                _alter(cluster, kind, name, parsed)
    except KlammError as error:
        raise ToolFailed(
            f"Error while executing config command with args '{' '.join(args)}'\n"
            f"java.util.concurrent.ExecutionException: {java_error(error)}"
        ) from None
    return 0


def _check(parsed: Parsed) -> None:
    one_action(parsed, ("describe", "alter"), "Command must include exactly one action: --describe, --alter")
    if not (parsed.has("bootstrap-server") or parsed.has("bootstrap-controller")):
        raise Usage(
            "One of the required --bootstrap-server or --bootstrap-controller arguments must be specified", flags=False
        )
    if parsed.has("bootstrap-server") and parsed.has("bootstrap-controller"):
        raise Usage("Only one of --bootstrap-server or --bootstrap-controller can be specified", flags=False)
    if parsed.has("alter"):
        if not any(parsed.has(name) for name in ("add-config", "add-config-file", "delete-config")):
            raise Usage(
                "At least one of --add-config, --add-config-file, or --delete-config must be specified with --alter",
                flags=False,
            )
        if parsed.has("add-config") and parsed.has("add-config-file"):
            raise Usage("Only one of --add-config or --add-config-file must be specified", flags=False)


def _check_names(entities: list[Entity], *, describe: bool) -> None:
    """Refuse kinds that exclude each other, invalid names, and a missing name where Kafka requires one."""
    kinds = [kind for kind, _ in entities]
    twice = sorted({kind for kind in kinds if kinds.count(kind) > 1})
    if twice:
        raise ToolFailed(f"Duplicate entity type(s) specified: {','.join(twice)}")
    if len(kinds) > 1 and set(kinds) != {"users", "clients"}:
        raise ToolFailed("Only 'users' and 'clients' entity types may be specified together")
    for kind, name in entities:
        if kind in ("brokers", "broker-loggers") and name not in (None, "*") and java_integer(str(name)) is None:
            raise ToolFailed(f"The entity name for {kind} must be a valid integer broker id, but it is: {name}")
    kind, name = entities[0]
    if describe:
        if kind == "broker-loggers" and name in (None, "*"):
            raise ToolFailed(f"An entity name must be specified with --describe of {kind}")
        return
    if name == "*" and (kind in QUOTAS or kind == "brokers"):
        raise ToolFailed(
            "An entity-name or default entity must be specified with --alter of users, clients, brokers or ips"
        )
    if name == "*" or (name is None and kind not in QUOTAS and kind != "brokers"):
        raise ToolFailed(f"An entity name must be specified with --alter of {kind}")


def _entities(parsed: Parsed) -> list[Entity]:
    """Types with their names in the order both were written; a short form is both at once."""
    types, names = parsed.all("entity-type"), parsed.all("entity-name")
    entities: list[Entity] = []
    for index, kind in enumerate(types):
        if index < len(names):
            entities.append((kind, names[index] or None))
        # Types without a name, in order: --entity-default stands for all that are left.
        elif parsed.has("entity-default"):
            entities.append((kind, None))
        else:
            entities.append((kind, "*"))
    for flag, kind in _SHORT.items():
        if parsed.has(flag):
            entities.append((kind, parsed.text(flag)))
        elif parsed.has(f"{flag}-defaults"):
            entities.append((kind, None))
    return entities


def _additions(parsed: Parsed) -> dict[str, str]:
    if parsed.has("add-config-file"):
        from klamm.cli.client_settings import read_properties

        return read_properties(parsed.text("add-config-file"))
    additions = {}
    for text in parsed.all("add-config"):
        for pair in _PAIR.split(text):
            if not pair:
                continue
            key, equals, value = pair.partition("=")
            if not equals:
                raise ToolFailed('Invalid entity config: all configs to be added must be in the format "key=val".')
            # Brackets only group a list; they are not part of the value.
            additions[key.strip()] = value.strip().removeprefix("[").removesuffix("]")
    return additions


def _deletions(parsed: Parsed) -> list[str]:
    return [key.strip() for text in parsed.all("delete-config") for key in text.split(",")]


def _alter(cluster: BlockingCluster, kind: str, name: str | None, parsed: Parsed) -> None:
    from klamm.cli.queries import configs
    from klamm.client.admin.config_types import AlterOp

    operations: list[configs.AlterConfigOp] = [(AlterOp.SET, k, v) for k, v in _additions(parsed).items()]
    operations += [(AlterOp.DELETE, key, None) for key in _deletions(parsed)]
    # Kafka's tool checks the names of loggers itself, with this sentence.
    if kind == "broker-loggers":
        known = {entry.name for entry in configs.describe(cluster, KINDS[kind], str(name))}
        strange = [key for _, key, _ in operations if key not in known]
        if strange:
            raise ToolFailed(f"Invalid broker logger(s): {','.join(strange)}")
    configs.alter(cluster, KINDS[kind], name or "", operations)
    if name is None:
        print(f"Completed updating default config for {kind} in the cluster.")
    else:
        print(f"Completed updating config for {_singular(kind)} {name}.")


def _singular(kind: str) -> str:
    return kind.removesuffix("s")


def _describe(cluster: BlockingCluster, kind: str, name: str | None, *, everything: bool) -> None:
    from klamm.cli.queries import configs

    if name not in (None, "*") and not _exists(cluster, kind, str(name)):
        print(f"The {_singular(kind)} '{name}' doesn't exist and doesn't have dynamic config.")
        return
    for entity in _names(cluster, kind) if name == "*" else [name]:
        settings = configs.describe(cluster, KINDS[kind], entity or "")
        if entity is None:
            print(f"Default configs for {kind} in the cluster are:")
        else:
            word = "All" if everything else "Dynamic"
            print(f"{word} configs for {_singular(kind)} {entity} are:")
        for setting in settings:
            if everything or _dynamic(kind, entity, setting):
                print(_line(setting))


def _dynamic(kind: str, name: str | None, setting: ConfigEntry) -> bool:
    own = {
        "topics": "DYNAMIC_TOPIC_CONFIG",
        "brokers": "DYNAMIC_DEFAULT_BROKER_CONFIG" if name is None else "DYNAMIC_BROKER_CONFIG",
        "broker-loggers": "DYNAMIC_BROKER_LOGGER_CONFIG",
        "client-metrics": "DYNAMIC_CLIENT_METRICS_CONFIG",
        "groups": "DYNAMIC_GROUP_CONFIG",
    }[kind]
    # Dynamic means set at this very level: a topic also shows what brokers set, as a synonym.
    return setting.source.name == own


def _line(setting: ConfigEntry) -> str:
    synonyms = ", ".join(f"{synonym.source.name}:{synonym.name}={_null(synonym.value)}" for synonym in setting.synonyms)
    sensitive = "true" if setting.sensitive else "false"
    return f"  {setting.name}={_null(setting.value)} sensitive={sensitive} synonyms={{{synonyms}}}"


def _null(value: str | None) -> str:
    return "null" if value is None else value


def _exists(cluster: BlockingCluster, kind: str, name: str) -> bool:
    return name in _names(cluster, kind)


def _names(cluster: BlockingCluster, kind: str) -> list[str | None]:
    if kind == "topics":
        from klamm.cli.queries.topics import list_topics

        return [topic.name for topic in list_topics(cluster)]
    if kind in ("brokers", "broker-loggers"):
        return [*map(str, cluster.broker_ids), *([None] if kind == "brokers" else [])]
    from klamm.cli.queries.configs import list_resources

    listed: list[str | None] = [*list_resources(cluster, KINDS[kind])]
    if kind == "groups":
        from klamm.cli.queries.groups import list_groups

        # A group without configs of its own is not a config resource, but it can be described.
        listed += [group.group_id for group in list_groups(cluster) if group.group_id not in listed]
    return sorted(listed, key=str)
