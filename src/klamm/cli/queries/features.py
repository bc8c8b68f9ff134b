"""The cluster's feature levels: which there are, what each Kafka release has, and changing them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from klamm.cli.queries.outcomes import ItemOutcome, item_outcomes
from klamm.client.admin.cluster import ClusterAdmin
from klamm.client.admin.cluster_types import UpgradeType
from klamm.client.blocking_cluster import BlockingCluster
from klamm.client.errors import KafkaError

METADATA: Final = "metadata.version"
_FIRST_LEVEL: Final = 7
METADATA_VERSIONS: Final = (
    "3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2", "3.7-IV0", "3.7-IV1",
    "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0", "4.0-IV0", "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0",
    "4.1-IV1", "4.2-IV0", "4.2-IV1", "4.3-IV0", "4.4-IV0",
)  # fmt: skip
"""The names of metadata.version from 7 on, as Kafka 4.3 has them."""
LATEST_PRODUCTION: Final = "4.3-IV0"
LEVELS: Final[Mapping[str, tuple[int, ...]]] = {
    "kraft.version": (21,),
    "transaction.version": (24, 24),
    "group.version": (22,),
    "eligible.leader.replicas.version": (26,),
    "share.version": (28,),
    "streams.version": (29,),
}
"""Features in Kafka's order: with each of its levels from 1 on, the metadata.version of the release that has it."""
DEPENDENCIES: Final[Mapping[tuple[str, int], tuple[str, int]]] = {
    ("eligible.leader.replicas.version", 1): (METADATA, 23)
}


@dataclass(frozen=True, slots=True)
class Feature:
    """One feature: the levels brokers could run at, and the one the cluster runs at."""

    name: str
    lowest: int
    highest: int
    level: int


class UnknownRelease(ValueError):
    """A release or metadata.version that Kafka does not have; the message lists those there are."""


def describe_features(cluster: BlockingCluster) -> tuple[list[Feature], int]:
    """All features by name, and the epoch of their levels."""
    description = cluster.run(ClusterAdmin(cluster).describe_features())
    features = [
        Feature(name, lowest, highest, description.finalized.get(name, 0))
        for name, (lowest, highest) in sorted(description.supported.items())
    ]
    return features, description.epoch


def update_features(
    cluster: BlockingCluster, levels: Mapping[str, int], upgrade: UpgradeType, *, validate_only: bool
) -> dict[str, ItemOutcome]:
    """Change levels; the outcome of each. From version 2 of the request on all of them change, or none does."""
    work = ClusterAdmin(cluster).update_features(levels, upgrade=upgrade, validate_only=validate_only)
    try:
        return item_outcomes(cluster, work, levels)
    except KafkaError as error:
        return dict.fromkeys(levels, (error.code, error.detail or error.message))


def metadata_level(release: str) -> int:
    """The metadata.version of a release (4.3) or of a version (4.3-IV0); UnknownRelease where there is none."""
    if release in METADATA_VERSIONS:
        return _FIRST_LEVEL + METADATA_VERSIONS.index(release)
    match = re.match(r"(\d+\.\d+)(\.\d+)?$", release)
    named = [name for name in METADATA_VERSIONS if match and name.startswith(f"{match[1]}-")]
    if not named:
        names = ", ".join(METADATA_VERSIONS)
        raise UnknownRelease(f"Unknown {METADATA} '{release}'. Supported {METADATA} are: {names}")
    return _FIRST_LEVEL + METADATA_VERSIONS.index(named[-1])


def level_name(feature: str, level: int) -> str:
    """A level as Kafka shows it: that of metadata.version by its name."""
    index = level - _FIRST_LEVEL
    return METADATA_VERSIONS[index] if feature == METADATA and 0 <= index < len(METADATA_VERSIONS) else str(level)


def release_levels(release: str) -> dict[str, int]:
    """Every feature's level in a release, metadata.version first."""
    metadata = metadata_level(release)
    return {METADATA: metadata, **{name: sum(at <= metadata for at in levels) for name, levels in LEVELS.items()}}
