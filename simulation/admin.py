"""The operator of a run: makes topics, and changes the cluster while it is at work."""

from typing import TYPE_CHECKING, Any

from klamm.model.errors import ErrorCode
from klamm.protocol.messages.add_raft_voter import AddRaftVoterRequest, Listener
from klamm.protocol.messages.alter_partition_reassignments import (
    AlterPartitionReassignmentsRequest,
    ReassignablePartition,
    ReassignableTopic,
)
from klamm.protocol.messages.create_partitions import CreatePartitionsRequest, CreatePartitionsTopic
from klamm.protocol.messages.create_topics import CreatableTopic, CreatableTopicConfig, CreateTopicsRequest
from klamm.protocol.messages.delete_topics import DeleteTopicsRequest, DeleteTopicState
from klamm.protocol.messages.elect_leaders import ElectLeadersRequest
from klamm.protocol.messages.incremental_alter_configs import (
    AlterableConfig,
    AlterConfigsResource,
    IncrementalAlterConfigsRequest,
)
from klamm.protocol.messages.remove_raft_voter import RemoveRaftVoterRequest
from klamm.raft.core.quorum import Voter
from simulation.client import GONE, Client
from simulation.guests import rights_of_load
from simulation.users import ADMIN

if TYPE_CHECKING:
    from simulation.run import Run

TOPIC = 2
"""A topic, as resources of configs are numbered."""
VOTER_TRIES = 10


class SimAdmin(Client):
    """Asks whichever broker it finds; what fails is not tried again, except the making of topics."""

    def __init__(self, run: "Run") -> None:
        super().__init__(run.cluster, "admin", ADMIN)
        self._run = run
        self.ready = False
        self.changing_voters = False
        """Whether a voter is on its way out or in: one change at a time."""

    async def run(self) -> None:
        for name, partitions, factor, configs in self._run.topics:
            await self.create(name, partitions, factor, configs)
        if self.cluster.layout.secured:
            await self._give_rights()
        self.ready = True

    async def _give_rights(self) -> None:
        """Let the load do its work, however often it takes."""
        while True:
            response = await self.try_once(rights_of_load(), 3)
            if response is not None and all(result.error_code == ErrorCode.NONE for result in response.results):
                return
            await self.pause()

    async def create(self, name: str, partitions: int, factor: int, configs: dict[str, str]) -> None:
        """Make a topic, however often it takes."""
        topic = CreatableTopic(
            name=name,
            num_partitions=partitions,
            replication_factor=factor,
            configs=[CreatableTopicConfig(name=key, value=value) for key, value in configs.items()],
        )
        while True:
            try:
                response = await self.ask(None, CreateTopicsRequest(topics=[topic], timeout_ms=2_000), 7)
                if response.topics[0].error_code in (ErrorCode.NONE, ErrorCode.TOPIC_ALREADY_EXISTS):
                    return
            except GONE:
                pass
            await self.pause()

    async def try_once(self, request: object, version: int) -> Any:
        """Ask once; None without an answer; the change may have been made all the same."""
        try:
            return await self.ask(None, request, version)
        except GONE:
            return None

    async def elect_preferred(self) -> None:
        """Let the first replica of every partition lead."""
        await self.try_once(ElectLeadersRequest(election_type=0, topic_partitions=None, timeout_ms=3_000), 2)

    async def reassign(self, topic: str, replicas: dict[int, list[int]]) -> None:
        """Put partitions on other brokers."""
        partitions = [ReassignablePartition(partition_index=i, replicas=list(r)) for i, r in replicas.items()]
        request = AlterPartitionReassignmentsRequest(
            timeout_ms=3_000, topics=[ReassignableTopic(name=topic, partitions=partitions)]
        )
        await self.try_once(request, 0)

    async def configure(self, topic: str, name: str, value: str) -> None:
        """Change a setting of a topic."""
        resource = AlterConfigsResource(
            resource_type=TOPIC,
            resource_name=topic,
            configs=[AlterableConfig(name=name, config_operation=0, value=value)],
        )
        await self.try_once(IncrementalAlterConfigsRequest(resources=[resource]), 1)

    async def add_partitions(self, topic: str, count: int) -> None:
        """Give a topic more partitions; clients learn of them once they exist on every replica."""
        request = CreatePartitionsRequest(
            topics=[CreatePartitionsTopic(name=topic, count=count, assignments=None)], timeout_ms=3_000
        )
        while True:
            response = await self.try_once(request, 3)
            # INVALID_PARTITIONS: there are so many already, by a request whose answer was lost.
            if response is not None and response.results[0].error_code in (
                ErrorCode.NONE,
                ErrorCode.INVALID_PARTITIONS,
            ):
                self._run.on_partitions_added(topic, count)
                return
            await self.pause()

    async def remove_voter(self, voter: Voter) -> bool:
        """Let a controller vote no more; False when that is not known to have worked."""
        request = RemoveRaftVoterRequest(
            cluster_id=self.cluster.cluster_id, voter_id=voter.id, voter_directory_id=voter.key.directory_id
        )
        response = await self.try_once(request, 0)
        return response is not None and response.error_code in (ErrorCode.NONE, ErrorCode.VOTER_NOT_FOUND)

    async def add_voter(self, voter: Voter) -> bool:
        """Let a controller vote; False when that is not known to have worked."""
        request = AddRaftVoterRequest(
            cluster_id=self.cluster.cluster_id,
            timeout_ms=3_000,
            voter_id=voter.id,
            voter_directory_id=voter.key.directory_id,
            listeners=[Listener(name=voter.listener, host=voter.host, port=voter.port)],
        )
        response = await self.try_once(request, 1)
        return response is not None and response.error_code in (ErrorCode.NONE, ErrorCode.DUPLICATE_VOTER)

    async def replace_voter(self, before: Voter, after: Voter) -> None:
        """A voter has a new disk, and with it a new directory id: the old one leaves, the new one joins."""
        self.changing_voters = True
        for _ in range(VOTER_TRIES):
            if await self.remove_voter(before) and await self.add_voter(after):
                break
            await self.pause(0.5)
        self.changing_voters = False

    async def bring_voter(self, voter: Voter) -> None:
        """Add a voter, trying for a while."""
        for _ in range(VOTER_TRIES):
            if await self.add_voter(voter):
                break
            await self.pause(0.5)
        self.changing_voters = False

    async def recreate(self, topic: str, partitions: int) -> None:
        """Make a topic, delete it, and make it again under the same name."""
        factor = self._run.factor
        for _ in range(2):
            await self.create(topic, partitions, factor, {})
            await self.pause(0.5)
            await self.try_once(DeleteTopicsRequest(topics=[DeleteTopicState(name=topic)], timeout_ms=3_000), 6)
        await self.create(topic, partitions, factor, {})
