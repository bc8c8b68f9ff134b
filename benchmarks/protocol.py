"""What the wire costs: microseconds per message, best of several rounds.

PYTHONPATH=src python benchmarks/protocol.py
"""

import timeit
from functools import partial

from klamm.protocol import decode, decode_request_header, encode
from klamm.protocol.header import RequestHeader, encode_request_header
from klamm.protocol.messages.fetch import (
    FetchableTopicResponse,
    FetchPartition,
    FetchRequest,
    FetchResponse,
    FetchTopic,
    PartitionData,
)
from klamm.protocol.messages.heartbeat import HeartbeatRequest, HeartbeatResponse
from klamm.protocol.messages.metadata import (
    MetadataResponse,
    MetadataResponseBroker,
    MetadataResponsePartition,
    MetadataResponseTopic,
)
from klamm.protocol.messages.produce import (
    PartitionProduceData,
    PartitionProduceResponse,
    ProduceRequest,
    ProduceResponse,
    TopicProduceData,
    TopicProduceResponse,
)


def best(run, number):
    """Microseconds of one call: the fastest of seven rounds."""
    run()
    return min(timeit.repeat(run, number=number, repeat=7)) / number * 1e6


def metadata(topics, partitions):
    """An answer about a cluster of three brokers."""
    return MetadataResponse(
        brokers=[MetadataResponseBroker(node_id=n, host=f"broker-{n}", port=9092) for n in range(3)],
        cluster_id="abcdefghijklmnopqrstuv",
        topics=[
            MetadataResponseTopic(
                name=f"topic-{number:05d}",
                topic_id=number.to_bytes(16),
                partitions=[
                    MetadataResponsePartition(
                        partition_index=index, leader_id=index % 3, replica_nodes=[0, 1, 2], isr_nodes=[0, 1, 2]
                    )
                    for index in range(partitions)
                ],
            )
            for number in range(topics)
        ],
    )


def small_messages():
    """The requests and responses of a broker's working day, with their versions."""
    partition = PartitionProduceData(records=bytes(120))
    fetched = PartitionData(high_watermark=10, last_stable_offset=10, log_start_offset=0, records=bytes(1000))
    return (
        (HeartbeatRequest(group_id="group", generation_id=7, member_id="consumer-1-d9f1a0e2"), 4),
        (HeartbeatResponse(), 4),
        (
            ProduceRequest(
                acks=-1, timeout_ms=30000, topic_data=[TopicProduceData(name="t", partition_data=[partition])]
            ),
            9,
        ),
        (
            ProduceResponse(
                responses=[
                    TopicProduceResponse(name="t", partition_responses=[PartitionProduceResponse(base_offset=9)])
                ]
            ),
            9,
        ),
        (
            FetchRequest(max_wait_ms=500, topics=[FetchTopic(topic="t", partitions=[FetchPartition(fetch_offset=9)])]),
            12,
        ),
        (FetchResponse(responses=[FetchableTopicResponse(topic="t", partitions=[fetched])]), 12),
    )


def main():
    header = encode_request_header(RequestHeader(0, 9, 1, "rdkafka"))
    print(f"{'request header v2':32} read {best(partial(decode_request_header, header), 20000):8.2f} us")
    for message, version in small_messages():
        cls = type(message)
        data = memoryview(encode(message, version))
        read = best(partial(decode, cls, version, data), 10000)
        write = best(partial(encode, message, version), 10000)
        print(f"{cls.__name__ + f' v{version}':32} read {read:8.2f} us   write {write:8.2f} us")
    large = metadata(1000, 3)
    data = encode(large, 12)
    read = best(partial(decode, MetadataResponse, 12, data), 5) / 1000
    write = best(partial(encode, large, 12), 5) / 1000
    print(f"{'MetadataResponse v12, 1000 x 3':32} read {read:8.2f} ms   write {write:8.2f} ms   {len(data):,} bytes")


if __name__ == "__main__":
    main()
