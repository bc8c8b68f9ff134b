"""The controller's decisions about topics, partitions, leaders, brokers, configs, feature levels and producer ids.

Pure: a decision reads the metadata image and returns records; replaying the records changes the state. `klamm.raft`
makes records durable, `klamm.metadata` gives them their meaning, `klamm.server` receives the requests.
"""

from klamm.controller.config_validation import CatalogValidator, ConfigValidator
from klamm.controller.context import ControllerConfig, ControllerContext, ControllerDecision, RandomSource
from klamm.controller.controller import Controller, QuotaClient

__all__ = [
    "CatalogValidator",
    "ConfigValidator",
    "Controller",
    "ControllerConfig",
    "ControllerContext",
    "ControllerDecision",
    "QuotaClient",
    "RandomSource",
]
