"""AlterClientQuotas, v0-1: set the limits of users, clients and addresses.

v1 flexible
"""

from klamm.protocol.schema import array, boolean, float64, int16, int32, message, string, struct, wire


@struct
class EntityData:
    """One part of an entity; a null name is the default."""

    entity_type: str = wire(string)
    entity_name: str | None = wire(string, nullable=0)


@struct
class OpData:
    """One limit to set or to remove."""

    key: str = wire(string)
    # Without meaning when `remove` is set.
    value: float = wire(float64)
    remove: bool = wire(boolean)


@struct
class EntryData:
    """The changes of one entity."""

    entity: list[EntityData] = wire(array(EntityData))
    ops: list[OpData] = wire(array(OpData))


@message(api_key=49, versions=(0, 1), flexible=1)
class AlterClientQuotasRequest:
    """Give the limits to set or to remove."""

    entries: list[EntryData] = wire(array(EntryData))
    validate_only: bool = wire(boolean)


@struct
class EntryDataResponse:
    """Whether one entity was changed."""

    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)
    entity: list[EntityData] = wire(array(EntityData))


@message(api_key=49, versions=(0, 1), flexible=1)
class AlterClientQuotasResponse:
    """The result of each entity."""

    throttle_time_ms: int = wire(int32)
    entries: list[EntryDataResponse] = wire(array(EntryDataResponse))
