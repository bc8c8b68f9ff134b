"""All settings of groups and of client-metrics subscriptions."""

from __future__ import annotations

import re
from typing import Any, Final

from klamm.model.broker_configs import BROKER_CONFIGS
from klamm.model.config import ConfigDef, ConfigKey, ConfigType
from klamm.model.config_rules import ConfigRule, at_least, list_of, one_of

# (?!$): Java accepts neither "P" nor "PT" alone.
_DURATION = re.compile(r"by_duration:P(?!$)([0-9]+D)?(T(?!$)([0-9]+H)?([0-9]+M)?([0-9]+(\.[0-9]+)?S)?)?", re.IGNORECASE)


def _reset(value: Any) -> str:
    fine = value in ("latest", "earliest") or _DURATION.fullmatch(value)
    return "" if fine else "write latest, earliest or by_duration:<ISO 8601 duration>, e.g. by_duration:PT1H"


def _like_broker(name: str, low: int) -> ConfigKey:
    # A group overrides the broker setting of the same name under `group.`; only the lower bound is its own.
    broker = BROKER_CONFIGS.key(f"group.{name}")
    return ConfigKey(name, broker.type, broker.default, broker.doc, rule=at_least(low))


GROUP_CONFIGS: Final = ConfigDef(
    "group setting",
    (
        _like_broker("consumer.session.timeout.ms", 1),
        _like_broker("consumer.heartbeat.interval.ms", 1),
        _like_broker("consumer.assignment.interval.ms", 0),
        _like_broker("share.session.timeout.ms", 1),
        _like_broker("share.heartbeat.interval.ms", 1),
        _like_broker("share.record.lock.duration.ms", 1000),
        _like_broker("share.delivery.count.limit", 2),
        _like_broker("share.partition.max.record.locks", 100),
        ConfigKey(
            "share.auto.offset.reset",
            ConfigType.STRING,
            "latest",
            "Where a share group starts in a partition that it has not read.",
            rule=ConfigRule("latest, earliest or by_duration:PnDTnHnMn.nS", _reset),
        ),
        ConfigKey(
            "share.isolation.level",
            ConfigType.STRING,
            "read_uncommitted",
            "Whether a share group gets records of transactions that are not committed.",
            rule=one_of("read_committed", "read_uncommitted"),
        ),
        ConfigKey(
            "share.renew.acknowledge.enable",
            ConfigType.BOOLEAN,
            True,
            "Whether a member may renew its lock on a record.",
        ),
        _like_broker("share.assignment.interval.ms", 0),
        _like_broker("streams.session.timeout.ms", 1),
        _like_broker("streams.heartbeat.interval.ms", 1),
        _like_broker("streams.num.standby.replicas", 0),
        _like_broker("streams.initial.rebalance.delay.ms", 0),
        _like_broker("streams.assignment.interval.ms", 0),
    ),
)

CLIENT_METRICS_CONFIGS: Final = ConfigDef(
    "client-metrics setting",
    (
        # KIP-714: a client polls its subscription and pushes what it names.
        ConfigKey("metrics", ConfigType.LIST, (), "Prefixes of the client metrics that are requested.", rule=list_of()),
        ConfigKey("interval.ms", ConfigType.INT, 300_000, "Interval of a client's pushes."),
        ConfigKey("match", ConfigType.LIST, (), "Patterns that a client must match to be subscribed.", rule=list_of()),
    ),
)
