"""Deciding what the cluster should be: topics, partitions, leaders, brokers, configs, feature levels, producer ids.

Pure: a decision looks at the metadata image and returns records; replaying them is what changes state. How records
become durable is `klamm.raft`'s concern, what they mean is `klamm.metadata`'s, who asks is the server's.
"""

from klamm.controller.config_validation import CatalogValidator, ConfigValidator
from klamm.controller.context import Context, ControllerConfig, Decision, RandomSource
from klamm.controller.controller import Controller

__all__ = [
    "CatalogValidator",
    "ConfigValidator",
    "Context",
    "Controller",
    "ControllerConfig",
    "Decision",
    "RandomSource",
]
