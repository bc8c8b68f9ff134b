"""kafka-features: the levels of the cluster's features, and changing them."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING, Final

from klamm.cli.kafka.options import BOOTSTRAP, COMMAND_CONFIG, Flag, Flags, Parsed
from klamm.cli.kafka.script import ToolFailed, connect, read_flags

if TYPE_CHECKING:
    from klamm.client.blocking_cluster import BlockingCluster

FLAGS: Final = Flags(
    "kafka-features",
    BOOTSTRAP,
    Flag("bootstrap-controller", "Controllers to begin with.", "addresses"),
    COMMAND_CONFIG,
    Flag("feature", "A feature and its level, name=level; may be written more than once.", "name=level"),
    Flag("metadata", "The level of metadata.version, as 4.3 or 4.3-IV0.", "version"),
    Flag("release-version", "The levels that a release of Kafka has.", "version"),
    Flag("unsafe", "With downgrade and disable: even where metadata is lost by it."),
    Flag("dry-run", "Only check whether it could be done."),
)
COMMANDS: Final = ("describe", "upgrade", "downgrade", "disable", "version-mapping", "feature-dependencies")
_DONE: Final = {"upgrade": "upgraded", "downgrade": "downgraded", "disable": "disabled"}
_LEVEL_MAX: Final = 32767


def main(args: list[str]) -> int:
    """Run kafka-features."""
    parsed = read_flags(FLAGS, args)
    if parsed is None:
        return 0
    if not (parsed.text("bootstrap-server") or parsed.text("bootstrap-controller")):
        raise _complaint("one of the arguments --bootstrap-server --bootstrap-controller is required")
    if not parsed.rest:
        raise _complaint("too few arguments")
    command = parsed.rest[0]
    if command not in COMMANDS:
        choices = ", ".join(f"'{name}'" for name in COMMANDS)
        raise _complaint(f"argument command: invalid choice: '{command}' (choose from {choices})")
    from klamm.cli.queries.features import UnknownRelease

    try:
        if command == "version-mapping":
            return _map_versions(parsed)
        if command == "feature-dependencies":
            return _show_dependencies(parsed)
        with connect(parsed) as cluster:
            return _describe(cluster) if command == "describe" else _change(cluster, command, parsed)
    except UnknownRelease as error:
        raise ToolFailed(str(error)) from None


def _complaint(reason: str) -> ToolFailed:
    return ToolFailed(f"Command line error: {reason}. Type --help for help.")


def _describe(cluster: BlockingCluster) -> int:
    from klamm.cli.queries.features import describe_features, level_name

    features, epoch = describe_features(cluster)
    for feature in features:
        lowest, highest, level = (
            level_name(feature.name, number) for number in (feature.lowest, feature.highest, feature.level)
        )
        print(
            f"Feature: {feature.name:<40}  SupportedMinVersion: {lowest:<15}  SupportedMaxVersion: {highest:<15}"
            f"  FinalizedVersionLevel: {level:<15}  Epoch: {epoch if epoch >= 0 else '-'}"
        )
    return 0


def _map_versions(parsed: Parsed) -> int:
    from klamm.cli.queries.features import LATEST_PRODUCTION, METADATA, release_levels

    release = parsed.text("release-version", LATEST_PRODUCTION)
    for name, level in release_levels(release).items():
        print(f"{name}={level} ({release})" if name == METADATA else f"{name}={level}")
    return 0


def _show_dependencies(parsed: Parsed) -> int:
    from klamm.cli.queries.features import DEPENDENCIES, LEVELS, METADATA, level_name

    if not parsed.all("feature"):
        raise _complaint("argument --feature is required")
    for name, level in (_parse_level(text) for text in parsed.all("feature")):
        shown = f"{name}={level}"
        if name == METADATA:
            shown = f"{shown} ({level_name(name, level)})"
        elif name not in LEVELS:
            raise ToolFailed(f"Unknown feature: {name}")
        elif not 0 <= level <= len(LEVELS[name]):
            raise ToolFailed(f"No feature:{name} with feature level {level}")
        if (name, level) not in DEPENDENCIES:
            print(f"{shown} has no dependencies.")
            continue
        needed, at = DEPENDENCIES[name, level]
        print(f"{shown} requires:\n    {needed}={at} ({level_name(needed, at)})")
    return 0


def _change(cluster: BlockingCluster, command: str, parsed: Parsed) -> int:
    from klamm.cli.queries.features import update_features
    from klamm.client.admin.cluster_types import UpgradeType

    levels = _parse_levels(command, parsed)
    kind = UpgradeType.UPGRADE
    if command != "upgrade":
        # disable is a downgrade to 0.
        kind = UpgradeType.UNSAFE_DOWNGRADE if parsed.has("unsafe") else UpgradeType.SAFE_DOWNGRADE
    dry_run = parsed.has("dry-run")
    results = update_features(cluster, levels, kind, validate_only=dry_run)
    failed = 0
    # In the order of names, as Kafka's tool prints them.
    for name, (code, message) in sorted(results.items()):
        to = "" if command == "disable" else f" to {levels[name]}"
        if code:
            failed += 1
            print(f"{'Can' if dry_run else 'Could'} not {command} {name}{to}. {message or code.text}")
        else:
            print(f"{name} {'can be' if dry_run else 'was'} {_DONE[command]}{to}.")
    if failed:
        print(f"{failed} out of {len(results)} operation(s) failed.", file=sys.stderr)
    return 1 if failed else 0


def _parse_levels(command: str, parsed: Parsed) -> Mapping[str, int]:
    from klamm.cli.queries.features import METADATA, metadata_level, release_levels

    features = parsed.all("feature")
    if command == "disable":
        levels = dict.fromkeys(features, 0)
    elif parsed.has("release-version"):
        # A release is a complete set of levels.
        if features or parsed.has("metadata"):
            raise ToolFailed("Can not specify `release-version` with other feature flags.")
        return release_levels(parsed.text("release-version"))
    else:
        levels = {}
        if parsed.has("metadata"):
            print(" `metadata` flag is deprecated and may be removed in a future release.")
            levels[METADATA] = metadata_level(parsed.text("metadata"))
        for name, level in (_parse_level(text) for text in features):
            if name in levels:
                raise ToolFailed(f"Feature {name} was specified more than once.")
            levels[name] = level
    if not levels:
        raise ToolFailed(f"You must specify at least one feature to {command}")
    return levels


def _parse_level(text: str) -> tuple[str, int]:
    name, equals, level = text.partition("=")
    if not equals:
        raise ToolFailed(f"Can't parse feature=level string {text}: equals sign not found.")
    digits = level.strip()
    # Levels are 16-bit numbers on the wire.
    if not digits.removeprefix("-").isdecimal() or not -_LEVEL_MAX - 1 <= int(digits) <= _LEVEL_MAX:
        raise ToolFailed(f"Can't parse feature=level string {text}: unable to parse {digits} as a short.")
    return name.strip(), int(digits)
