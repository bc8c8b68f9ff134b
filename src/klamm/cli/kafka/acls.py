"""kafka-acls: list, add and remove access rules."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterable, Sequence
from typing import Final

from klamm.cli.kafka.options import BOOTSTRAP, COMMAND_CONFIG, Flag, Flags, Parsed, Usage, one_action
from klamm.cli.kafka.script import ToolFailed, connect, java_error, read_flags, run_check
from klamm.cli.queries.acls import CLUSTER_NAME, AclResource, AclRule, add_rules, list_rules, remove_rules
from klamm.client.blocking_cluster import BlockingCluster
from klamm.model.acls import AclOperation, AclPermission, AclResourceType, PatternType
from klamm.model.errors import KlammError

FLAGS: Final = Flags(
    "kafka-acls",
    BOOTSTRAP,
    Flag("bootstrap-controller", "Controllers to begin with.", "addresses"),
    COMMAND_CONFIG,
    Flag("list", "Show rules; all of them, or those of the resources that are named."),
    Flag("add", "Add rules."),
    Flag("remove", "Remove rules."),
    Flag("topic", "A topic; * for all.", "topic"),
    Flag("group", "A consumer group; * for all.", "group"),
    Flag("cluster", "The cluster itself."),
    Flag("transactional-id", "A transactional id; * for all.", "id"),
    Flag("delegation-token", "A delegation token; * for all.", "token"),
    Flag("user-principal", "A user, as User:name.", "principal"),
    Flag("resource-pattern-type", "literal, prefixed, match or any.  [default: literal]", "type"),
    Flag("operation", "What the rules are about.  [default: All]", "operation"),
    Flag("allow-principal", "A principal that is allowed, as User:name.", "principal"),
    Flag("deny-principal", "A principal that is denied, as User:name.", "principal"),
    Flag("allow-host", "A host of the allowed principals.  [default: *]", "host"),
    Flag("deny-host", "A host of the denied principals.  [default: *]", "host"),
    Flag("principal", "With --list: only the rules of this principal.", "principal"),
    Flag("producer", "Rules a producer of --topic needs."),
    Flag("consumer", "Rules a consumer of --topic in --group needs."),
    Flag("idempotent", "With --producer: an idempotent one."),
    Flag("force", "Do not prompt before rules are removed."),
)
_ACTIONS: Final = ("list", "add", "remove")
_NAMED: Final = {
    "topic": AclResourceType.TOPIC,
    "group": AclResourceType.GROUP,
    "transactional-id": AclResourceType.TRANSACTIONAL_ID,
    "delegation-token": AclResourceType.DELEGATION_TOKEN,
    "user-principal": AclResourceType.USER,
}
_CONFIGS: Final = (AclOperation.DESCRIBE_CONFIGS, AclOperation.ALTER_CONFIGS)
_SUPPORTED: Final = {
    AclResourceType.TOPIC: (
        AclOperation.READ,
        AclOperation.WRITE,
        AclOperation.CREATE,
        AclOperation.DESCRIBE,
        AclOperation.DELETE,
        AclOperation.ALTER,
        *_CONFIGS,
    ),
    AclResourceType.GROUP: (AclOperation.READ, AclOperation.DESCRIBE, AclOperation.DELETE, *_CONFIGS),
    AclResourceType.CLUSTER: (
        AclOperation.CREATE,
        AclOperation.CLUSTER_ACTION,
        AclOperation.IDEMPOTENT_WRITE,
        AclOperation.ALTER,
        AclOperation.DESCRIBE,
        *_CONFIGS,
    ),
    AclResourceType.TRANSACTIONAL_ID: (AclOperation.DESCRIBE, AclOperation.WRITE),
    AclResourceType.DELEGATION_TOKEN: (AclOperation.DESCRIBE,),
    AclResourceType.USER: (AclOperation.CREATE_TOKENS, AclOperation.DESCRIBE_TOKENS),
}
"""The operations of each resource type, besides ALL."""
_CLUSTER: Final = AclResource(AclResourceType.CLUSTER, CLUSTER_NAME, PatternType.LITERAL)
_NO_RESOURCE: Final = (
    "You must provide at least one resource: --topic <topic> or --cluster or --group <group> or --delegation-token"
    " <Delegation Token ID>"
)
_NO_PRINCIPAL: Final = "You must specify one of: --allow-principal, --deny-principal when trying to add ACLs."


def main(args: list[str]) -> int:
    """Run kafka-acls."""
    parsed = read_flags(FLAGS, args, empty_is_help=True)
    if parsed is None:
        return 0
    run_check(FLAGS, functools.partial(_check, parsed))
    try:
        with connect(parsed) as cluster:
            if parsed.has("list"):
                _list(cluster, parsed)
            elif parsed.has("add"):
                _add(cluster, parsed)
            else:
                _remove(cluster, parsed)
    except Usage as usage:
        raise ToolFailed(f"{usage}\n{FLAGS.usage()}") from None
    # On standard output, as in Kafka's tool, which catches everything there and prints it.
    except KlammError as error:
        raise ToolFailed(f"Error while executing ACL command: {java_error(error)}", out=True) from None
    return 0


def _check(parsed: Parsed) -> None:
    if not (parsed.has("bootstrap-server") or parsed.has("bootstrap-controller")):
        raise Usage("One of --bootstrap-server or --bootstrap-controller must be specified")
    if parsed.has("bootstrap-server") and parsed.has("bootstrap-controller"):
        raise Usage("Only one of --bootstrap-server or --bootstrap-controller must be specified")
    one_action(parsed, _ACTIONS, "Command must include exactly one action: --list, --add, --remove. ")
    if (parsed.has("producer") or parsed.has("consumer")) and not parsed.has("topic"):
        raise Usage("With --producer or --consumer, --topic must be specified")
    if parsed.has("consumer") and not parsed.has("group"):
        raise Usage("With --consumer you must specify a --group")
    if parsed.has("idempotent") and not parsed.has("producer"):
        raise Usage("The --idempotent option is only available if --producer is set")


def _list(cluster: BlockingCluster, parsed: Parsed) -> None:
    rules = list_rules(cluster, _resources(parsed))
    principals = [_principal(text) for text in parsed.all("principal")]
    if not principals:
        _print_rules("Current", rules)
    for principal in principals:
        print(f"ACLs for principal `{principal}`")
        own = {resource: [rule for rule in held if rule.principal == principal] for resource, held in rules.items()}
        _print_rules("Current", {resource: held for resource, held in own.items() if held})


def _add(cluster: BlockingCluster, parsed: Parsed) -> None:
    if _pattern(parsed) not in (PatternType.LITERAL, PatternType.PREFIXED):
        word = _pattern(parsed).name
        raise Usage(f"A '--resource-pattern-type' value of '{word}' is not valid when adding acls.")
    wanted = _parse_acls(parsed)
    if not all(wanted.values()):
        raise Usage(_NO_PRINCIPAL)
    list_rules(cluster, wanted)  # Kafka's tool lists first too, and fails here without an authorizer
    for resource, rules in wanted.items():
        add_rules(cluster, resource, rules)
        print(f"Adding ACLs for resource `{_format_resource(resource)}`: \n {_lines(rules)}\n")


def _remove(cluster: BlockingCluster, parsed: Parsed) -> None:
    for resource, rules in _parse_acls(parsed).items():
        where = _format_resource(resource)
        question = f"Are you sure you want to delete all ACLs for resource filter `{where}`? (y/n)"
        if rules:
            question = (
                f"Are you sure you want to remove ACLs: \n {_lines(rules)}\n from resource filter `{where}`? (y/n)"
            )
        if parsed.has("force") or _confirm(question):
            remove_rules(cluster, resource, rules)


def _confirm(question: str) -> bool:
    print(question)
    try:
        # Anything but y, and the end of input, is no: as in the JVM tool.
        return input().strip().lower() == "y"
    except EOFError:
        return False


def _parse_acls(parsed: Parsed) -> dict[AclResource, list[AclRule]]:
    """The rules of the command line, by the resource they are for."""
    resources = _resources(parsed)
    if not resources:
        raise Usage(_NO_RESOURCE)
    if not (parsed.has("producer") or parsed.has("consumer")):
        written = parsed.all("operation") or ["All"]
        return {
            resource: _rules(parsed, [_operation(text, resource.type) for text in written]) for resource in resources
        }
    wanted: dict[AclResource, list[AclRule]] = {}
    for resource in resources:
        operations = _choose_operations(parsed, resource.type)
        if operations:
            wanted[resource] = _rules(parsed, operations)
    if parsed.has("idempotent"):
        wanted[_CLUSTER] = _rules(parsed, [AclOperation.IDEMPOTENT_WRITE])
    return wanted


def _choose_operations(parsed: Parsed, resource_type: AclResourceType) -> list[AclOperation]:
    """What a producer, a consumer or both do with a resource."""
    operations: list[AclOperation] = []
    if parsed.has("producer") and resource_type == AclResourceType.TOPIC:
        # CREATE, since a producer may create the topic it writes to (auto.create.topics.enable).
        operations += [AclOperation.WRITE, AclOperation.DESCRIBE, AclOperation.CREATE]
    if parsed.has("producer") and resource_type == AclResourceType.TRANSACTIONAL_ID:
        operations += [AclOperation.WRITE, AclOperation.DESCRIBE]
    if parsed.has("consumer") and resource_type == AclResourceType.TOPIC:
        operations += [AclOperation.READ, AclOperation.DESCRIBE]
    if parsed.has("consumer") and resource_type == AclResourceType.GROUP:
        operations.append(AclOperation.READ)
    return list(dict.fromkeys(operations))


def _rules(parsed: Parsed, operations: Sequence[AclOperation]) -> list[AclRule]:
    rules = []
    for word, permission in (("allow", AclPermission.ALLOW), ("deny", AclPermission.DENY)):
        # A rule without a host applies everywhere.
        hosts = [host.strip() for host in parsed.all(f"{word}-host")] or ["*"]
        for principal in map(_principal, parsed.all(f"{word}-principal")):
            rules += [AclRule(principal, host, operation, permission) for operation in operations for host in hosts]
    return list(dict.fromkeys(rules))


def _resources(parsed: Parsed) -> list[AclResource]:
    pattern = _pattern(parsed)
    resources = [AclResource(kind, name.strip(), pattern) for flag, kind in _NAMED.items() for name in parsed.all(flag)]
    # The cluster has one fixed name, kafka-cluster; prefixes and matches of it mean nothing.
    if pattern == PatternType.LITERAL and (parsed.has("cluster") or parsed.has("idempotent")):
        resources.append(_CLUSTER)
    return resources


def _pattern(parsed: Parsed) -> PatternType:
    text = parsed.text("resource-pattern-type", "literal")
    pattern = PatternType.__members__.get(text.strip().upper(), PatternType.UNKNOWN)
    if pattern == PatternType.UNKNOWN:
        raise Usage(f"Cannot parse argument '{text}' of option resource-pattern-type", flags=False)
    return pattern


def _operation(text: str, kind: AclResourceType) -> AclOperation:
    """`Read`, `DescribeConfigs` or `DESCRIBE_CONFIGS`; Usage for one that is not done to such a resource."""
    name = text.strip()
    # Kafka accepts both spellings: DescribeConfigs and DESCRIBE_CONFIGS.
    if not name.isupper():
        name = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).upper()
    supported = (AclOperation.ALL, *_SUPPORTED[kind])
    for operation in supported:
        if operation.name == name:
            return operation
    names = ", ".join(operation.name for operation in supported)
    raise Usage(f"ResourceType {kind.name} only supports operations [{names}]")


def _principal(text: str) -> str:
    kind, colon, name = text.strip().partition(":")
    if not kind or not colon or not name:
        raise ToolFailed(
            "Error while executing ACL command: expected a string in format principalType:principalName but got"
            f" {text.strip()}",
            out=True,
        )
    return text.strip()


def _print_rules(word: str, rules: dict[AclResource, list[AclRule]]) -> None:
    for resource, held in rules.items():
        print(f"{word} ACLs for resource `{_format_resource(resource)}`:\n{_lines(held)}\n")


def _format_resource(resource: AclResource) -> str:
    return (
        f"ResourcePattern(resourceType={resource.type.name}, name={resource.name}, patternType={resource.pattern.name})"
    )


def _lines(rules: Iterable[AclRule]) -> str:
    return "\n".join(
        f"\t(principal={rule.principal}, host={rule.host}, operation={rule.operation.name},"
        f" permissionType={rule.permission.name})"
        for rule in rules
    )
