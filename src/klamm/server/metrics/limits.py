"""How many series of a kind a node serves; `klamm_metrics_omitted` counts the others."""

from typing import Final

PARTITIONS_MAX: Final = 20_000
"""Replicas of this node that have metrics of their own, and the topics in them."""
TOPICS_MAX: Final = 20_000
"""Topics of the cluster, which the active controller serves."""
GROUPS_MAX: Final = 20_000
GROUP_PARTITIONS_MAX: Final = 20_000
"""Positions of groups that have metrics of their own."""
QUOTAS_MAX: Final = 1_000
"""Quotas of the metadata log, and windows of clients that use one."""
