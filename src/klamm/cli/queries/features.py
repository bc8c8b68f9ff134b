"""The cluster's feature levels: which there are, what each Kafka release has, and changing them."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from klamm.client.blocking_cluster import BlockingCluster
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.api_versions import ApiVersionsRequest
from klamm.protocol.messages.update_features import FeatureUpdateKey, UpdateFeaturesRequest

METADATA: Final = "metadata.version"
UPGRADE, SAFE_DOWNGRADE, UNSAFE_DOWNGRADE = 1, 2, 3
_FIRST_LEVEL: Final = 7
METADATA_VERSIONS: Final = (
    "3.3-IV3", "3.4-IV0", "3.5-IV0", "3.5-IV1", "3.5-IV2", "3.6-IV0", "3.6-IV1", "3.6-IV2", "3.7-IV0", "3.7-IV1",
    "3.7-IV2", "3.7-IV3", "3.7-IV4", "3.8-IV0", "3.9-IV0", "4.0-IV0", "4.0-IV1", "4.0-IV2", "4.0-IV3", "4.1-IV0",
    "4.1-IV1", "4.2-IV0", "4.2-IV1", "4.3-IV0", "4.4-IV0",
)  # fmt: skip
"""The names of metadata.version from 7 on, as Kafka 4.3 knows them."""
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
    """A release or metadata.version that Kafka does not have; says which there are."""


def describe(cluster: BlockingCluster) -> tuple[list[Feature], int]:
    """All features by name, and the epoch of their levels."""
    answer = cluster.ask(ApiVersionsRequest(client_software_name="klamm", client_software_version="0"))
    levels = {
        finalized_feature.name: finalized_feature.max_version_level for finalized_feature in answer.finalized_features
    }
    features = [
        Feature(
            supported_feature.name,
            supported_feature.min_version,
            supported_feature.max_version,
            levels.get(supported_feature.name, 0),
        )
        for supported_feature in answer.supported_features
    ]
    return sorted(features, key=lambda feature: feature.name), answer.finalized_features_epoch


def update(
    cluster: BlockingCluster, levels: Mapping[str, int], kind: int, *, validate_only: bool
) -> dict[str, tuple[ErrorCode, str | None]]:
    """Change levels; what became of each. From version 2 of the request on all of them change, or none does."""
    updates = [FeatureUpdateKey(feature=name, max_version_level=to, upgrade_type=kind) for name, to in levels.items()]
    answer = cluster.ask(UpdateFeaturesRequest(feature_updates=updates, validate_only=validate_only))
    if answer.error_code:
        return dict.fromkeys(levels, (ErrorCode(answer.error_code), answer.error_message))
    single = {result.feature: (ErrorCode(result.error_code), result.error_message) for result in answer.results}
    return {name: single.get(name, (ErrorCode.NONE, None)) for name in levels}


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
