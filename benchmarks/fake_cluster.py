"""A Kafka peer that serves the metadata of a large cluster and keeps nothing: what a console reads, at any size.

    python -m benchmarks.fake_cluster [--topics N] [--groups N]

One process listens as all brokers. The offsets of a third of the topics grow with the clock, each at a rate of its own;
every group reads one topic. The registry beside it has a subject for each topic. Prints the bootstrap server and the
address of the registry as JSON, and ends with its standard input.
"""

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from klamm.protocol.apis import APIS, BY_NAME
from klamm.protocol.codec import decode, encode
from klamm.protocol.header import decode_request_header, encode_response_header
from klamm.protocol.messages.api_versions import ApiVersion, ApiVersionsResponse
from klamm.protocol.messages.describe_acls import AclDescription, DescribeAclsResource, DescribeAclsResponse
from klamm.protocol.messages.describe_client_quotas import DescribeClientQuotasResponse
from klamm.protocol.messages.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from klamm.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsResponse
from klamm.protocol.messages.describe_log_dirs import (
    DescribeLogDirsPartition,
    DescribeLogDirsResponse,
    DescribeLogDirsResult,
    DescribeLogDirsTopic,
)
from klamm.protocol.messages.describe_quorum import (
    DescribeQuorumResponse,
    PartitionDataResponse,
    ReplicaState,
    TopicDataResponse,
)
from klamm.protocol.messages.describe_topic_partitions import (
    Cursor,
    DescribeTopicPartitionsResponse,
    DescribeTopicPartitionsResponsePartition,
    DescribeTopicPartitionsResponseTopic,
)
from klamm.protocol.messages.describe_transactions import DescribeTransactionsResponse
from klamm.protocol.messages.describe_transactions import TransactionState as DescribedTransaction
from klamm.protocol.messages.describe_user_scram_credentials import (
    CredentialInfo,
    DescribeUserScramCredentialsResponse,
    DescribeUserScramCredentialsResult,
)
from klamm.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from klamm.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from klamm.protocol.messages.list_groups import ListedGroup, ListGroupsResponse
from klamm.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from klamm.protocol.messages.list_partition_reassignments import ListPartitionReassignmentsResponse
from klamm.protocol.messages.list_transactions import ListTransactionsResponse, TransactionState
from klamm.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from klamm.protocol.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)

BROKERS = 12
PARTITIONS = 10
TRANSACTIONS = 300
USERS = 300
RECORD_BYTES = 300
BUSY = 1 / 3
"""The share of topics with traffic; of so many topics most are idle."""
VERSIONS_BY_NAME = {"OffsetFetch": 9, "Fetch": 12}
"""The newest versions that name topics, and not their ids."""
LATEST = -1


@dataclass(frozen=True, slots=True)
class FakeTopic:
    """One topic; its partitions differ by their replicas only."""

    name: str
    first_offset: int
    rate: float
    """Records per second of each partition."""
    leader: int
    """Of the first partition; the next broker leads the next partition."""

    def replicas(self, partition: int) -> list[int]:
        """The brokers of a partition, its leader first."""
        return [(self.leader + partition + step) % BROKERS + 1 for step in range(3)]

    def end(self, seconds: float) -> int:
        """The end offset of every partition."""
        return self.first_offset + int(self.rate * seconds)


class FakeCluster:
    """Answers requests from a few formulas; the large answers that never change are encoded once."""

    def __init__(self, topics: int, groups: int) -> None:
        chance = random.Random(7)
        words = ("orders", "payments", "users", "shipments")
        self.topics = [
            FakeTopic(
                f"{chance.choice(words)}-{i:05}",
                chance.randrange(1_000_000),
                chance.random() * 5 if chance.random() < BUSY else 0.0,
                chance.randrange(BROKERS),
            )
            for i in range(topics)
        ]
        self.groups = {f"group-{i:05}": self.topics[i % topics] for i in range(groups)}
        self.ports: list[int] = []
        self.requests: dict[str, int] = {}
        """How many of each API were answered."""
        self._began = time.monotonic()
        self._by_name = {topic.name: topic for topic in self.topics}
        self._positions = {topic.name: position for position, topic in enumerate(self.topics)}
        self._encoded: dict[tuple[str, int, int], bytes] = {}
        self._servers: list[asyncio.Server] = []
        self._tasks: set[asyncio.Task[None]] = set()

    @property
    def bootstrap(self) -> str:
        """The address of the first broker."""
        return f"127.0.0.1:{self.ports[0]}"

    @property
    def registry(self) -> str:
        """The address of the registry."""
        return f"http://127.0.0.1:{self.ports[-1]}"

    async def start(self) -> None:
        """Listen as all brokers and as the registry."""
        for node in range(1, BROKERS + 1):
            await self._listen(_BrokerPort(self, node).serve)
        await self._listen(self.serve_registry)

    async def _listen(self, serve: Any) -> None:
        async def track(incoming: asyncio.StreamReader, outgoing: asyncio.StreamWriter) -> None:
            task = asyncio.current_task()
            assert task is not None
            self._tasks.add(task)
            try:
                await serve(incoming, outgoing)
            except asyncio.CancelledError:
                # By `stop`; the callback of the stream would report it as an error.
                pass
            finally:
                self._tasks.discard(task)

        server = await asyncio.start_server(track, "127.0.0.1", 0)
        self._servers.append(server)
        self.ports.append(server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        """Listen no more, and end all connections."""
        for server in self._servers:
            server.close()
        tasks = list(self._tasks)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def answer(self, frame: bytes, node: int) -> bytes:
        """Return the response frame of a request frame."""
        header, start = decode_request_header(frame)
        api, version = APIS[header.api_key], header.api_version
        self.requests[api.name] = self.requests.get(api.name, 0) + 1
        request, _ = decode(api.request, version, frame, start)
        head = encode_response_header(header.correlation_id, header.api_key, version)
        body = self._encode(api.name, request, version, node)
        return (len(head) + len(body)).to_bytes(4, "big") + head + body

    def _encode(self, name: str, request: Any, version: int, node: int) -> bytes:
        whole = name == "DescribeLogDirs" or (name == "Metadata" and request.topics is None)
        if not whole:
            return encode(getattr(self, f"_{BY_NAME[name].family}")(request, node), version)
        key = (name, version, node if name == "DescribeLogDirs" else 0)
        if key not in self._encoded:
            self._encoded[key] = encode(getattr(self, f"_{BY_NAME[name].family}")(request, node), version)
        return self._encoded[key]

    # Answers, by the name of the API

    @cached_property
    def _served(self) -> list[str]:
        return [name for name, api in BY_NAME.items() if hasattr(self, f"_{api.family}")]

    def _api_versions(self, _request: Any, _node: int) -> ApiVersionsResponse:
        keys = []
        for name in self._served:
            first, last = BY_NAME[name].versions
            last = VERSIONS_BY_NAME.get(name, last)
            keys.append(ApiVersion(api_key=BY_NAME[name].key, min_version=first, max_version=last))
        return ApiVersionsResponse(api_keys=keys)

    def _metadata(self, request: Any, _node: int) -> MetadataResponse:
        wanted = self.topics if request.topics is None else [self._by_name[topic.name] for topic in request.topics]
        return MetadataResponse(
            brokers=[
                MetadataResponseBroker(node_id=node, host="127.0.0.1", port=self.ports[node - 1])
                for node in range(1, BROKERS + 1)
            ],
            cluster_id="fake",
            controller_id=1,
            topics=[
                MetadataResponseTopic(
                    name=topic.name,
                    topic_id=hash(topic.name).to_bytes(16, "big", signed=True),
                    partitions=[
                        MetadataResponsePartition(
                            partition_index=index,
                            leader_id=topic.replicas(index)[0],
                            leader_epoch=3,
                            replica_nodes=topic.replicas(index),
                            isr_nodes=topic.replicas(index),
                        )
                        for index in range(PARTITIONS)
                    ],
                )
                for topic in wanted
            ],
        )

    def _describe_topic_partitions(self, request: Any, _node: int) -> DescribeTopicPartitionsResponse:
        begin = 0 if request.cursor is None else self._positions[request.cursor.topic_name]
        end = begin + max(request.response_partition_limit // PARTITIONS, 1)
        topics = [
            DescribeTopicPartitionsResponseTopic(
                name=topic.name,
                topic_id=hash(topic.name).to_bytes(16, "big", signed=True),
                partitions=[
                    DescribeTopicPartitionsResponsePartition(
                        partition_index=index,
                        leader_id=topic.replicas(index)[0],
                        leader_epoch=3,
                        replica_nodes=topic.replicas(index),
                        isr_nodes=topic.replicas(index),
                    )
                    for index in range(PARTITIONS)
                ],
            )
            for topic in self.topics[begin:end]
        ]
        more = Cursor(topic_name=self.topics[end].name, partition_index=0) if end < len(self.topics) else None
        return DescribeTopicPartitionsResponse(topics=topics, next_cursor=more)

    def _describe_cluster(self, _request: Any, _node: int) -> DescribeClusterResponse:
        brokers = [
            DescribeClusterBroker(broker_id=node, host="127.0.0.1", port=self.ports[node - 1])
            for node in range(1, BROKERS + 1)
        ]
        return DescribeClusterResponse(cluster_id="fake", controller_id=1, brokers=brokers)

    def _list_offsets(self, request: Any, _node: int) -> ListOffsetsResponse:
        seconds = time.monotonic() - self._began
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        ListOffsetsPartitionResponse(
                            partition_index=partition.partition_index,
                            offset=self._by_name[topic.name].end(seconds) if partition.timestamp == LATEST else 0,
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _describe_log_dirs(self, _request: Any, node: int) -> DescribeLogDirsResponse:
        topics = []
        for topic in self.topics:
            size = topic.first_offset * RECORD_BYTES
            partitions = [
                DescribeLogDirsPartition(partition_index=index, partition_size=size)
                for index in range(PARTITIONS)
                if node in topic.replicas(index)
            ]
            topics.append(DescribeLogDirsTopic(name=topic.name, partitions=partitions))
        folder = DescribeLogDirsResult(log_dir="/data", topics=topics, total_bytes=1 << 44, usable_bytes=1 << 43)
        return DescribeLogDirsResponse(results=[folder])

    def _fetch(self, request: Any, _node: int) -> FetchResponse:
        # Logs without records: the age of unread ones stays unknown.
        responses = [
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    PartitionData(partition_index=partition.partition, high_watermark=0, records=b"")
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return FetchResponse(responses=responses)

    def _coordinator_of(self, name: str) -> int:
        return sum(name.encode()) % BROKERS + 1

    def _find_coordinator(self, request: Any, _node: int) -> FindCoordinatorResponse:
        coordinators = []
        for key in request.coordinator_keys:
            node = self._coordinator_of(key)
            coordinators.append(Coordinator(key=key, node_id=node, host="127.0.0.1", port=self.ports[node - 1]))
        return FindCoordinatorResponse(coordinators=coordinators)

    def _list_groups(self, _request: Any, node: int) -> ListGroupsResponse:
        groups = [
            ListedGroup(group_id=name, protocol_type="consumer", group_state="Stable", group_type="classic")
            for name in self.groups
            if self._coordinator_of(name) == node
        ]
        return ListGroupsResponse(groups=groups)

    def _describe_groups(self, request: Any, _node: int) -> DescribeGroupsResponse:
        groups = [
            DescribedGroup(group_id=name, group_state="Empty", protocol_type="consumer") for name in request.groups
        ]
        return DescribeGroupsResponse(groups=groups)

    def _offset_fetch(self, request: Any, _node: int) -> OffsetFetchResponse:
        seconds = time.monotonic() - self._began
        groups = []
        for group in request.groups:
            topic = self.groups[group.group_id]
            offset = max(topic.end(seconds) - 7, 0)
            partitions = [
                OffsetFetchResponsePartitions(partition_index=index, committed_offset=offset, metadata="")
                for index in range(PARTITIONS)
            ]
            topics = [OffsetFetchResponseTopics(name=topic.name, partitions=partitions)]
            groups.append(OffsetFetchResponseGroup(group_id=group.group_id, topics=topics))
        return OffsetFetchResponse(groups=groups)

    def _list_partition_reassignments(self, _request: Any, _node: int) -> ListPartitionReassignmentsResponse:
        return ListPartitionReassignmentsResponse(error_message=None)

    def _list_transactions(self, request: Any, node: int) -> ListTransactionsResponse:
        # None is open for long, as the collector asks.
        count = 0 if request.duration_filter > 0 else TRANSACTIONS
        names = [f"transfers-{i:05}" for i in range(count)]
        states = [
            TransactionState(transactional_id=name, producer_id=i, transaction_state="Ongoing")
            for i, name in enumerate(names)
            if self._coordinator_of(name) == node
        ]
        return ListTransactionsResponse(transaction_states=states)

    def _describe_transactions(self, request: Any, _node: int) -> DescribeTransactionsResponse:
        now_ms = time.time_ns() // 1_000_000
        states = [
            DescribedTransaction(
                transactional_id=name,
                transaction_state="Ongoing",
                transaction_timeout_ms=60_000,
                transaction_start_time_ms=now_ms - 2000,
                producer_id=1,
            )
            for name in request.transactional_ids
        ]
        return DescribeTransactionsResponse(transaction_states=states)

    def _describe_quorum(self, _request: Any, _node: int) -> DescribeQuorumResponse:
        voters = [ReplicaState(replica_id=node, log_end_offset=1000) for node in (1, 2, 3)]
        partition = PartitionDataResponse(
            leader_id=1, leader_epoch=3, high_watermark=1000, current_voters=voters, error_message=None
        )
        topic = TopicDataResponse(topic_name="__cluster_metadata", partitions=[partition])
        return DescribeQuorumResponse(topics=[topic], error_message=None)

    def _describe_acls(self, _request: Any, _node: int) -> DescribeAclsResponse:
        rights = [
            AclDescription(principal=f"User:user-{i}", host="*", operation=3, permission_type=3) for i in range(USERS)
        ]
        resources = [
            DescribeAclsResource(resource_type=2, resource_name=topic.name, pattern_type=3, acls=[right])
            for topic, right in zip(self.topics, rights, strict=False)
        ]
        return DescribeAclsResponse(error_message=None, resources=resources)

    def _describe_user_scram_credentials(self, _request: Any, _node: int) -> DescribeUserScramCredentialsResponse:
        results = [
            DescribeUserScramCredentialsResult(
                user=f"user-{i}", error_message=None, credential_infos=[CredentialInfo(mechanism=2, iterations=8192)]
            )
            for i in range(USERS)
        ]
        return DescribeUserScramCredentialsResponse(error_message=None, results=results)

    def _describe_client_quotas(self, _request: Any, _node: int) -> DescribeClientQuotasResponse:
        return DescribeClientQuotasResponse(error_message=None, entries=[])

    # The registry

    async def serve_registry(self, incoming: asyncio.StreamReader, outgoing: asyncio.StreamWriter) -> None:
        """Answer a GET request with the subjects, or the versions of one."""
        try:
            head = await incoming.readuntil(b"\r\n\r\n")
            path = head.split(b" ")[1].partition(b"?")[0].decode()
            answer: Any = [f"{topic.name}-value" for topic in self.topics]
            if path.endswith("/versions"):
                answer = [1]
            elif path.startswith("/config"):
                answer = {"compatibilityLevel": "BACKWARD"}
            elif "/versions/" in path:
                answer = {"subject": path.split("/")[2], "version": 1, "id": 1, "schema": '"string"'}
            body = json.dumps(answer).encode()
            outgoing.write(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Type: application/json\r\n")
            outgoing.write(b"Content-Length: %d\r\n\r\n" % len(body) + body)
            await outgoing.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            outgoing.close()


class _BrokerPort:
    """One of the brokers: the same answers, but of its own log dirs and groups."""

    def __init__(self, cluster: FakeCluster, node: int) -> None:
        self._cluster = cluster
        self._node = node

    async def serve(self, incoming: asyncio.StreamReader, outgoing: asyncio.StreamWriter) -> None:
        """Answer one connection until it ends."""
        try:
            while True:
                size = int.from_bytes(await incoming.readexactly(4), "big")
                outgoing.write(self._cluster.answer(await incoming.readexactly(size), self._node))
                await outgoing.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            outgoing.close()


@dataclass(frozen=True, slots=True)
class FakeAddresses:
    """Where a fake cluster listens."""

    bootstrap: str
    registry: str


@contextmanager
def serving_fake_cluster(topics: int, groups: int) -> Iterator[FakeAddresses]:
    """A fake cluster in a process of its own, until the block ends."""
    command = [sys.executable, "-m", "benchmarks.fake_cluster", "--topics", str(topics), "--groups", str(groups)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        try:
            yield FakeAddresses(**json.loads(process.stdout.readline()))
        finally:
            process.stdin.close()


async def run(topics: int, groups: int) -> None:
    """Serve until standard input ends."""
    cluster = FakeCluster(topics, groups)
    await cluster.start()
    print(json.dumps({"bootstrap": cluster.bootstrap, "registry": cluster.registry}), flush=True)
    await asyncio.to_thread(sys.stdin.read)
    await cluster.stop()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--topics", type=int, default=10_000)
    parser.add_argument("--groups", type=int, default=15_000)
    arguments = parser.parse_args()
    asyncio.run(run(arguments.topics, arguments.groups))
    return 0


if __name__ == "__main__":
    sys.exit(main())
