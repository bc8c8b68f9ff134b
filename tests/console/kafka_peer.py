"""A broker with scripted groups, for what Klamm's own nodes do not serve: share and streams groups of Kafka 4."""

from client.lying_broker import TOPIC_ID, LyingBroker, api_versions
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import BY_NAME
from klamm.protocol.messages.consumer_group_describe import ConsumerGroupDescribeResponse
from klamm.protocol.messages.consumer_group_describe import DescribedGroup as DescribedConsumerGroup
from klamm.protocol.messages.describe_cluster import DescribeClusterBroker, DescribeClusterResponse
from klamm.protocol.messages.describe_groups import DescribedGroup, DescribeGroupsResponse
from klamm.protocol.messages.describe_share_group_offsets import (
    DescribeShareGroupOffsetsResponse,
    DescribeShareGroupOffsetsResponseGroup,
    DescribeShareGroupOffsetsResponsePartition,
    DescribeShareGroupOffsetsResponseTopic,
)
from klamm.protocol.messages.fetch import FetchableTopicResponse, FetchResponse, PartitionData
from klamm.protocol.messages.find_coordinator import Coordinator, FindCoordinatorResponse
from klamm.protocol.messages.list_groups import ListedGroup, ListGroupsResponse
from klamm.protocol.messages.list_offsets import (
    ListOffsetsPartitionResponse,
    ListOffsetsResponse,
    ListOffsetsTopicResponse,
)
from klamm.protocol.messages.offset_fetch import (
    OffsetFetchResponse,
    OffsetFetchResponseGroup,
    OffsetFetchResponsePartitions,
    OffsetFetchResponseTopics,
)
from klamm.protocol.messages.share_group_describe import (
    Assignment,
    Member,
    ShareGroupDescribeResponse,
    TopicPartitions,
)
from klamm.protocol.messages.share_group_describe import DescribedGroup as DescribedShareGroup
from klamm.protocol.messages.streams_group_describe import Assignment as TaskAssignment
from klamm.protocol.messages.streams_group_describe import DescribedGroup as DescribedStreamsGroup
from klamm.protocol.messages.streams_group_describe import (
    Endpoint,
    StreamsGroupDescribeResponse,
    Subtopology,
    TaskIds,
    TopicInfo,
    Topology,
)
from klamm.protocol.messages.streams_group_describe import Member as StreamsMember

TOPICS = ("jobs", "words")
END = 100
_TYPES = {"workers": "share", "wordcount": "streams"}


class KafkaPeer(LyingBroker):
    """Two topics of two partitions with 100 offsets each; the share group workers and the streams group wordcount."""

    def __init__(self, **answers):
        scripted = {
            name: getattr(self, f"_{method}")
            for name, method in {
                "DescribeCluster": "describe_cluster",
                "ListOffsets": "list_offsets",
                "ListGroups": "list_groups",
                "FindCoordinator": "find_coordinator",
                "ConsumerGroupDescribe": "consumer_group_describe",
                "DescribeGroups": "describe_groups",
                "ShareGroupDescribe": "share_group_describe",
                "DescribeShareGroupOffsets": "describe_share_group_offsets",
                "StreamsGroupDescribe": "streams_group_describe",
                "OffsetFetch": "offset_fetch",
                "Fetch": "fetch",
            }.items()
        }
        super().__init__({**scripted, **answers}, partitions=2)
        self.answers["ApiVersions"] = self._api_versions

    def metadata(self, request, version):
        if request.topics is None:
            request.topics = [type("Named", (), {"name": name}) for name in TOPICS]
        response = super().metadata(request, version)
        for topic, number in zip(response.topics, range(99), strict=False):
            topic.topic_id = TOPIC_ID[:-1] + bytes([number])
        return response

    def _api_versions(self, _request, version):
        # Only what is scripted: requests without an answer would end the connection.
        versions = api_versions(version)
        served = {BY_NAME[name].key for name in self.answers}
        versions.api_keys = [api for api in versions.api_keys if api.api_key in served]
        for api in versions.api_keys:
            # Versions that name topics, and no later ones with their ids.
            if api.api_key == BY_NAME["Fetch"].key:
                api.max_version = 12
        return versions

    def _describe_cluster(self, _request, _version):
        broker = DescribeClusterBroker(broker_id=1, host="127.0.0.1", port=self.port)
        return DescribeClusterResponse(cluster_id="peer", controller_id=1, brokers=[broker])

    def _list_offsets(self, request, _version):
        return ListOffsetsResponse(
            topics=[
                ListOffsetsTopicResponse(
                    name=topic.name,
                    partitions=[
                        ListOffsetsPartitionResponse(
                            partition_index=partition.partition_index,
                            error_code=0,
                            timestamp=-1,
                            offset=0 if partition.timestamp == -2 else END,
                        )
                        for partition in topic.partitions
                    ],
                )
                for topic in request.topics
            ]
        )

    def _list_groups(self, _request, _version):
        groups = [
            ListedGroup(group_id=name, protocol_type=kind, group_state="Stable", group_type=kind)
            for name, kind in _TYPES.items()
        ]
        return ListGroupsResponse(error_code=0, groups=groups)

    def _find_coordinator(self, request, _version):
        coordinators = [
            Coordinator(key=key, node_id=1, host="127.0.0.1", port=self.port, error_code=0)
            for key in request.coordinator_keys
        ]
        return FindCoordinatorResponse(coordinators=coordinators)

    def _consumer_group_describe(self, request, _version):
        groups = [
            DescribedConsumerGroup(
                error_code=ErrorCode.GROUP_ID_NOT_FOUND, error_message=f"Group {name} is not a consumer group."
            )
            for name in request.group_ids
        ]
        return ConsumerGroupDescribeResponse(groups=groups)

    def _describe_groups(self, request, _version):
        groups = [
            DescribedGroup(error_code=ErrorCode.GROUP_ID_NOT_FOUND, group_id=name, group_state="Dead")
            for name in request.groups
        ]
        return DescribeGroupsResponse(groups=groups)

    def _share_group_describe(self, request, _version):
        name = request.group_ids[0]
        if _TYPES.get(name) != "share":
            missing = DescribedShareGroup(error_code=ErrorCode.GROUP_ID_NOT_FOUND, group_id=name)
            return ShareGroupDescribeResponse(groups=[missing])
        members = [
            Member(
                member_id=f"member-{number}",
                member_epoch=3,
                client_id=f"worker-{number}",
                client_host="/10.0.0.1",
                subscribed_topic_names=["jobs"],
                # Members of a share group read the same partitions.
                assignment=Assignment(topic_partitions=[TopicPartitions(topic_name="jobs", partitions=[0, 1])]),
            )
            for number in (1, 2)
        ]
        group = DescribedShareGroup(
            group_id=name,
            group_state="Stable",
            group_epoch=3,
            assignment_epoch=3,
            assignor_name="simple",
            members=members,
        )
        return ShareGroupDescribeResponse(groups=[group])

    def _describe_share_group_offsets(self, request, _version):
        offsets = [
            DescribeShareGroupOffsetsResponsePartition(partition_index=0, start_offset=60, leader_epoch=0, lag=37),
            DescribeShareGroupOffsetsResponsePartition(partition_index=1, start_offset=-1, leader_epoch=0, lag=-1),
        ]
        topic = DescribeShareGroupOffsetsResponseTopic(topic_name="jobs", partitions=offsets)
        group = DescribeShareGroupOffsetsResponseGroup(group_id=request.groups[0].group_id, topics=[topic])
        return DescribeShareGroupOffsetsResponse(groups=[group])

    def _streams_group_describe(self, request, _version):
        name = request.group_ids[0]
        if _TYPES.get(name) != "streams":
            missing = DescribedStreamsGroup(error_code=ErrorCode.GROUP_ID_NOT_FOUND, group_id=name)
            return StreamsGroupDescribeResponse(groups=[missing])
        topology = Topology(
            epoch=1,
            subtopologies=[
                Subtopology(
                    subtopology_id="0",
                    source_topics=["words"],
                    repartition_sink_topics=[],
                    state_changelog_topics=[TopicInfo(name="wordcount-store-changelog", topic_configs=[])],
                    repartition_source_topics=[],
                )
            ],
        )
        member = StreamsMember(
            member_id="streams-1",
            member_epoch=7,
            client_id="app-1",
            client_host="/10.0.0.2",
            topology_epoch=1,
            process_id="process-1",
            user_endpoint=Endpoint(host="app-1", port=8081),
            client_tags=[],
            task_offsets=[],
            task_end_offsets=[],
            assignment=TaskAssignment(
                active_tasks=[TaskIds(subtopology_id="0", partitions=[0])],
                standby_tasks=[TaskIds(subtopology_id="0", partitions=[1])],
                warmup_tasks=[],
            ),
            target_assignment=TaskAssignment(active_tasks=[], standby_tasks=[], warmup_tasks=[]),
        )
        group = DescribedStreamsGroup(
            group_id=name,
            group_state="Stable",
            group_epoch=7,
            assignment_epoch=7,
            topology=topology,
            members=[member],
        )
        return StreamsGroupDescribeResponse(groups=[group])

    def _offset_fetch(self, request, _version):
        name = request.groups[0].group_id
        if name not in _TYPES or _TYPES[name] == "share":
            missing = OffsetFetchResponseGroup(group_id=name, topics=[], error_code=ErrorCode.GROUP_ID_NOT_FOUND)
            return OffsetFetchResponse(groups=[missing])
        partitions = [
            OffsetFetchResponsePartitions(partition_index=index, committed_offset=90, metadata="", error_code=0)
            for index in (0, 1)
        ]
        topics = [OffsetFetchResponseTopics(name="words", partitions=partitions)]
        return OffsetFetchResponse(groups=[OffsetFetchResponseGroup(group_id=name, topics=topics, error_code=0)])

    def _fetch(self, request, _version):
        # Logs whose records are gone: the age of unread ones stays unknown.
        responses = [
            FetchableTopicResponse(
                topic=topic.topic,
                partitions=[
                    PartitionData(
                        partition_index=partition.partition,
                        error_code=0,
                        high_watermark=END,
                        last_stable_offset=END,
                        log_start_offset=0,
                        aborted_transactions=[],
                        records=b"",
                    )
                    for partition in topic.partitions
                ],
            )
            for topic in request.topics
        ]
        return FetchResponse(error_code=0, session_id=0, responses=responses)
