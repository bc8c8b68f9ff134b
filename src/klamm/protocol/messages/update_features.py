"""UpdateFeatures, v0-2: raise or lower the cluster's feature levels.

v1 upgrade type, validate only · v2 one result for all updates
"""

from klamm.protocol.schema import array, boolean, int8, int16, int32, message, string, struct, wire


@struct
class FeatureUpdateKey:
    """One feature and its new level."""

    feature: str = wire(string)
    max_version_level: int = wire(int16)
    allow_downgrade: bool = wire(boolean, until=0)
    # 1 upgrade, 2 safe and 3 unsafe downgrade.
    upgrade_type: int = wire(int8, since=1, default=1)


@message(api_key=57, versions=(0, 2), flexible=0)
class UpdateFeaturesRequest:
    """Give the new levels."""

    timeout_ms: int = wire(int32, default=60000)
    feature_updates: list[FeatureUpdateKey] = wire(array(FeatureUpdateKey))
    validate_only: bool = wire(boolean, since=1)


@struct
class UpdatableFeatureResult:
    """Whether one feature was changed."""

    feature: str = wire(string)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)


@message(api_key=57, versions=(0, 2), flexible=0)
class UpdateFeaturesResponse:
    """Whether the levels were changed."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)
    results: list[UpdatableFeatureResult] = wire(array(UpdatableFeatureResult), until=1)
