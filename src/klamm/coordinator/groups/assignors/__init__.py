"""Server-side assignors: who reads which partition of a consumer group, computed by the broker (KIP-848).

Pure functions from what members subscribe to and have now to what they should have. `uniform` gives every member the
same number of partitions and moves as few as it can; `range` gives contiguous ranges, the same ones for topics that
belong together. Both put a partition beside a replica of the member's rack where that costs no balance.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from klamm.coordinator.groups.assignors.range import assign as range_
from klamm.coordinator.groups.assignors.spec import AssignPartitions, MemberAssignment, MemberSpec, TopicSpec
from klamm.coordinator.groups.assignors.uniform import assign as uniform

ASSIGNORS: Final[Mapping[str, AssignPartitions]] = MappingProxyType({"uniform": uniform, "range": range_})
"""Every assignor by the name members and settings give it."""

__all__ = ["ASSIGNORS", "AssignPartitions", "MemberAssignment", "MemberSpec", "TopicSpec"]
