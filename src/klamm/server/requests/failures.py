"""The log line of a request that failed by a fault of this node."""

from klamm.net import Channel
from klamm.telemetry.log import get_logger

log = get_logger("server")


def log_request_failed(channel: Channel, api_key: int, version: int, error: Exception) -> None:
    """Log "request failed" with peer, API key, version and traceback."""
    log.failure("request failed", error, peer=channel.peer_address, api_key=api_key, version=version)
