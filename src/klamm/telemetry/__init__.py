"""How a running node tells what it does: the structured log. Measurements will live here too.

It knows nothing of the other rooms; they bind their fields and speak.
"""

from klamm.telemetry.log import Level, Logger, configure, get_logger

__all__ = ["Level", "Logger", "configure", "get_logger"]
