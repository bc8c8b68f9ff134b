"""ApiVersions, v0-4: the APIs and versions a broker serves; the first request of a client.

v1 throttle time · v2 quota applied after the response · v3 flexible, client software, features · v4 features whose
minimum level is 0
The response header stays at v0 for good, and a request too new is answered as v0.
"""

from klamm.protocol.schema import array, boolean, int16, int32, int64, message, string, struct, wire


@message(api_key=18, versions=(0, 4), flexible=3)
class ApiVersionsRequest:
    """Request the APIs and versions of the broker; names the client's software."""

    client_software_name: str = wire(string, since=3)
    client_software_version: str = wire(string, since=3)


@struct
class ApiVersion:
    """One API and the versions in which it is served."""

    api_key: int = wire(int16)
    min_version: int = wire(int16)
    max_version: int = wire(int16)


@struct
class SupportedFeatureKey:
    """A feature and the levels the broker could run at."""

    name: str = wire(string)
    min_version: int = wire(int16)
    max_version: int = wire(int16)


@struct
class FinalizedFeatureKey:
    """A feature and the level the cluster runs at."""

    name: str = wire(string)
    max_version_level: int = wire(int16)
    min_version_level: int = wire(int16)


@message(api_key=18, versions=(0, 4), flexible=3)
class ApiVersionsResponse:
    """Every API the broker serves, and the cluster's feature levels."""

    error_code: int = wire(int16)
    api_keys: list[ApiVersion] = wire(array(ApiVersion))
    throttle_time_ms: int = wire(int32, since=1)
    # Tagged, so that a client which does not use features skips them.
    supported_features: list[SupportedFeatureKey] = wire(array(SupportedFeatureKey), since=3, tag=0)
    finalized_features_epoch: int = wire(int64, since=3, tag=1, default=-1)
    finalized_features: list[FinalizedFeatureKey] = wire(array(FinalizedFeatureKey), since=3, tag=2)
    # Always false since Kafka 4.0.
    zk_migration_ready: bool = wire(boolean, since=3, tag=3)
