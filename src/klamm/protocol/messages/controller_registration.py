"""ControllerRegistration, v0: a controller registers with the active one.

v0 flexible from the start
"""

from klamm.protocol.schema import array, boolean, int16, int32, message, string, struct, uint16, uuid, wire


@struct
class Listener:
    """An address of the controller."""

    name: str = wire(string)
    host: str = wire(string)
    port: int = wire(uint16)
    security_protocol: int = wire(int16)


@struct
class Feature:
    """A feature and the levels the controller could run at."""

    name: str = wire(string)
    min_supported_version: int = wire(int16)
    max_supported_version: int = wire(int16)


@message(api_key=70, versions=(0, 0), flexible=0)
class ControllerRegistrationRequest:
    """The controller's listeners and supported features."""

    controller_id: int = wire(int32)
    incarnation_id: bytes = wire(uuid)
    zk_migration_ready: bool = wire(boolean)
    listeners: list[Listener] = wire(array(Listener))
    features: list[Feature] = wire(array(Feature))


@message(api_key=70, versions=(0, 0), flexible=0)
class ControllerRegistrationResponse:
    """Whether it is registered."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)
