"""Groups: who reads what, and how far they have read. Pure: requests and deadlines in, decisions out.

`shard` is the state of one partition of `__consumer_offsets`; `offsets` keeps committed offsets, `classic` the groups
whose members assign among themselves. No file here uses a clock, a socket or a random source.
"""

from klamm.model.switches import interpreted_kernels, load_interpreted

if interpreted_kernels():
    load_interpreted(__name__, __path__[0], "kernels")

from klamm.coordinator.groups.config import GroupConfig
from klamm.coordinator.groups.shard import GroupShard

__all__ = ["GroupConfig", "GroupShard"]
