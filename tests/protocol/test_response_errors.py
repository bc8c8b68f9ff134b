"""The error codes of responses, as metrics count them."""

import pytest

from klamm.model.errors import ErrorCode
from klamm.protocol import response_errors
from klamm.protocol.apis import APIS
from klamm.protocol.messages import add_partitions_to_txn, share_fetch
from klamm.protocol.messages.heartbeat import HeartbeatResponse
from klamm.protocol.messages.produce import PartitionProduceResponse, ProduceResponse, TopicProduceResponse
from klamm.protocol.response_errors import find_errors


def produced(*codes):
    partitions = [PartitionProduceResponse(index=index, error_code=code) for index, code in enumerate(codes)]
    return ProduceResponse(responses=[TopicProduceResponse(name="t", partition_responses=partitions)])


def test_an_error_of_the_request():
    assert find_errors(HeartbeatResponse()) == []
    assert find_errors(HeartbeatResponse(error_code=ErrorCode.UNKNOWN_MEMBER_ID)) == [ErrorCode.UNKNOWN_MEMBER_ID]


def test_errors_of_partitions():
    assert find_errors(produced(0, 0)) == []
    assert find_errors(produced(6, 0, 6, 10)) == [6, 6, 10]


def test_errors_of_partitions_of_a_transaction():
    partitions = [
        add_partitions_to_txn.AddPartitionsToTxnPartitionResult(partition_index=index, partition_error_code=code)
        for index, code in enumerate([0, 51, 55])
    ]
    topics = [add_partitions_to_txn.AddPartitionsToTxnTopicResult(name="t", results_by_partition=partitions)]
    response = add_partitions_to_txn.AddPartitionsToTxnResponse(results_by_topic_v3_and_below=topics)
    assert find_errors(response) == [51, 55]
    transaction = add_partitions_to_txn.AddPartitionsToTxnResult(transactional_id="x", topic_results=topics)
    response = add_partitions_to_txn.AddPartitionsToTxnResponse(results_by_transaction=[transaction])
    assert find_errors(response) == [51, 55]


def test_errors_of_acknowledgements():
    partition = share_fetch.PartitionData(partition_index=0, error_code=6, acknowledge_error_code=121)
    topic = share_fetch.ShareFetchableTopicResponse(topic_id=bytes(16), partitions=[partition])
    assert sorted(find_errors(share_fetch.ShareFetchResponse(responses=[topic]))) == [6, 121]


def test_lists_are_read_up_to_a_limit(monkeypatch):
    monkeypatch.setattr(response_errors, "ELEMENTS_MAX", 2)
    assert find_errors(produced(6, 6, 6)) == [6, 6]


@pytest.mark.parametrize("api", APIS.values(), ids=str)
def test_every_response_has_a_place_for_errors(api):
    assert find_errors(api.response()) == []
    assert any(response_errors._error_fields(api.response))
