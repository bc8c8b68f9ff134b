"""DescribeClientQuotas, v0-1: show the limits set for users, clients and addresses.

v1 flexible
"""

from klamm.protocol.schema import array, boolean, float64, int8, int16, int32, message, string, struct, wire


@struct
class ComponentData:
    """One part of the entity: exactly named, default, or any."""

    entity_type: str = wire(string)
    match_type: int = wire(int8)
    # Null for the match types default and any.
    match: str | None = wire(string, nullable=0)


@message(api_key=48, versions=(0, 1), flexible=1)
class DescribeClientQuotasRequest:
    """Request the quotas of entities that match."""

    components: list[ComponentData] = wire(array(ComponentData))
    strict: bool = wire(boolean)


@struct
class EntityData:
    """One part of an entity; a null name is the default."""

    entity_type: str = wire(string)
    entity_name: str | None = wire(string, nullable=0)


@struct
class ValueData:
    """One limit."""

    key: str = wire(string)
    value: float = wire(float64)


@struct
class EntryData:
    """The limits of one entity."""

    entity: list[EntityData] = wire(array(EntityData))
    values: list[ValueData] = wire(array(ValueData))


@message(api_key=48, versions=(0, 1), flexible=1)
class DescribeClientQuotasResponse:
    """The quotas, by entity."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)
    # Null together with an error.
    entries: list[EntryData] | None = wire(array(EntryData), nullable=0)
