"""UnregisterBroker, v0: take a broker out of the cluster for good.

v0 flexible from the start
"""

from klamm.protocol.schema import int16, int32, message, string, wire


@message(api_key=64, versions=(0, 0), flexible=0)
class UnregisterBrokerRequest:
    """Name the broker."""

    broker_id: int = wire(int32)


@message(api_key=64, versions=(0, 0), flexible=0)
class UnregisterBrokerResponse:
    """Whether it is gone."""

    throttle_time_ms: int = wire(int32)
    error_code: int = wire(int16)
    error_message: str | None = wire(string, nullable=0)
