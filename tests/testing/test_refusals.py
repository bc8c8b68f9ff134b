"""A refusal is the request's own response, with the error where a client looks for it, in every version."""

import pytest

from klamm.model.errors import ErrorCode
from klamm.protocol.apis import BY_NAME
from klamm.protocol.codec import decode, encode
from klamm.protocol.messages.create_topics import CreatableTopic, CreateTopicsRequest
from klamm.protocol.messages.delete_groups import DeleteGroupsRequest
from klamm.protocol.messages.end_txn import EndTxnRequest
from klamm.protocol.messages.fetch import FetchPartition, FetchRequest, FetchTopic
from klamm.protocol.messages.find_coordinator import FindCoordinatorRequest
from klamm.protocol.messages.init_producer_id import InitProducerIdRequest
from klamm.protocol.messages.join_group import JoinGroupRequest
from klamm.protocol.messages.list_offsets import ListOffsetsPartition, ListOffsetsRequest, ListOffsetsTopic
from klamm.protocol.messages.metadata import MetadataRequest, MetadataRequestTopic
from klamm.protocol.messages.offset_commit import (
    OffsetCommitRequest,
    OffsetCommitRequestPartition,
    OffsetCommitRequestTopic,
)
from klamm.protocol.messages.produce import PartitionProduceData, ProduceRequest, TopicProduceData
from klamm.testing.refusals import NoErrorFieldError, build_refusal

CODE = ErrorCode.NOT_LEADER_OR_FOLLOWER
REQUESTS = {
    "Produce": (
        ProduceRequest(topic_data=[TopicProduceData(name="t", partition_data=[PartitionProduceData(index=3)])]),
        lambda r: (
            r.responses[0].name,
            r.responses[0].partition_responses[0].index,
            r.responses[0].partition_responses[0],
        ),
        ("t", 3),
    ),
    "Fetch": (
        FetchRequest(topics=[FetchTopic(topic="t", partitions=[FetchPartition(partition=3)])]),
        lambda r: (r.responses[0].topic, r.responses[0].partitions[0].partition_index, r.responses[0].partitions[0]),
        ("t", 3),
    ),
    "ListOffsets": (
        ListOffsetsRequest(topics=[ListOffsetsTopic(name="t", partitions=[ListOffsetsPartition(partition_index=3)])]),
        lambda r: (r.topics[0].name, r.topics[0].partitions[0].partition_index, r.topics[0].partitions[0]),
        ("t", 3),
    ),
    "Metadata": (
        MetadataRequest(topics=[MetadataRequestTopic(name="t")]),
        lambda r: (r.topics[0].name, r.topics[0]),
        ("t",),
    ),
    "OffsetCommit": (
        OffsetCommitRequest(
            topics=[OffsetCommitRequestTopic(name="t", partitions=[OffsetCommitRequestPartition(partition_index=3)])]
        ),
        lambda r: (r.topics[0].name, r.topics[0].partitions[0].partition_index, r.topics[0].partitions[0]),
        ("t", 3),
    ),
    "FindCoordinator": (
        FindCoordinatorRequest(coordinator_keys=["g"]),
        lambda r: (r.coordinators[0].key, r.coordinators[0]),
        ("g",),
    ),
    "JoinGroup": (JoinGroupRequest(group_id="g"), lambda r: (r,), ()),
    "InitProducerId": (InitProducerIdRequest(), lambda r: (r,), ()),
    "EndTxn": (EndTxnRequest(), lambda r: (r,), ()),
    "DeleteGroups": (DeleteGroupsRequest(groups_names=["g"]), lambda r: (r.results[0].group_id, r.results[0]), ("g",)),
    "CreateTopics": (
        CreateTopicsRequest(topics=[CreatableTopic(name="t")]),
        lambda r: (r.topics[0].name, r.topics[0]),
        ("t",),
    ),
}


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_the_error_stands_where_a_client_looks(name):
    request, look, expected = REQUESTS[name]
    *names, place = look(build_refusal(BY_NAME[name], request, CODE))
    assert tuple(names) == expected
    assert place.error_code == CODE


@pytest.mark.parametrize("name", sorted(REQUESTS))
def test_every_version_can_be_written_and_read(name):
    api = BY_NAME[name]
    answer = build_refusal(api, REQUESTS[name][0], CODE)
    for version in range(api.versions[0], api.versions[1] + 1):
        data = encode(answer, version)
        assert decode(api.response, version, data, 0)[1] == len(data)


def test_what_has_no_room_is_said():
    with pytest.raises(NoErrorFieldError):
        build_refusal(BY_NAME["Produce"], ProduceRequest(), CODE)
