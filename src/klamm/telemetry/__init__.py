"""The structured log of a node: the one way in which Klamm's processes write lines.

Imports nothing of the other packages; they bind their fields and log events.
"""

from klamm.telemetry.log import Level, Logger, capture_stdlib, configure, get_logger

__all__ = ["Level", "Logger", "capture_stdlib", "configure", "get_logger"]
