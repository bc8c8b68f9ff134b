"""Everything between this node and the active controller: its own controller, and a channel for each purpose."""

import asyncio

from klamm.raft import RaftDriver
from klamm.server.broker_watch import BrokerWatch
from klamm.server.controller_channel import ControllerChannel
from klamm.server.controller_runtime import ControllerRuntime


class ControllerLink:
    """Made once per node; told of every leader of the quorum."""

    def __init__(self, loop: asyncio.AbstractEventLoop, raft: RaftDriver, runtime: ControllerRuntime) -> None:
        self.runtime = runtime
        """This node's own controller; never active on a node that is none."""
        self.watch = BrokerWatch(loop, runtime, raft.config.node_id)
        self.admin = ControllerChannel(loop, raft, runtime, purpose="forwarding")
        """For requests of clients."""
        self.heartbeat = ControllerChannel(loop, raft, runtime, purpose="heartbeat")
        """For registration and heartbeats alone: this connection's end means something."""
        self.isr = ControllerChannel(loop, raft, runtime, purpose="alter-partition")
        """For what brokers have to say about partitions, and for producer ids."""

    def on_leader_change(self, _leader_id: int | None, _epoch: int) -> None:
        """Take over or step back; whoever waits for a controller asks the new one."""
        self.runtime.on_leader_change()
        for channel in (self.admin, self.heartbeat, self.isr):
            channel.on_leader_change()

    async def stop(self) -> None:
        """Decide and ask nothing more."""
        await self.runtime.stop()
        for channel in (self.admin, self.heartbeat, self.isr):
            channel.close()
