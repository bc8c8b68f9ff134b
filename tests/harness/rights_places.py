"""Where a denial stands in the response of each API, as Apache Kafka 4.3.1 has it.

A place is the path of an error code; `[]` is every element of an array. No other code of the response is set.
"""

from collections.abc import Iterator
from typing import Any

TOP = "error_code"
_OF_PARTITIONS = "topics[].partitions[].error_code"
_OF_TOPICS = "topics[].error_code"
_OF_GROUPS = "groups[].error_code"
_OF_RESULTS = "results[].error_code"
_OF_RESPONSES = "responses[].error_code"
_ADDED = "results_by_topic_v3_and_below[].results_by_partition[].partition_error_code"

_PLACES: dict[str, tuple[str, ...]] = {
    "Produce": ("responses[].partition_responses[].error_code",),
    "Fetch": ("responses[].partitions[].error_code",),
    "ListOffsets": (_OF_PARTITIONS,),
    "Metadata": (_OF_TOPICS,),
    "OffsetCommit": (_OF_PARTITIONS, _OF_PARTITIONS),
    "OffsetFetch": (_OF_GROUPS, "groups[].topics[].partitions[].error_code"),
    "FindCoordinator": ("coordinators[].error_code",),
    "DescribeGroups": (_OF_GROUPS,),
    "CreateTopics": (_OF_TOPICS,),
    "DeleteTopics": (_OF_RESPONSES,),
    "DeleteRecords": (_OF_PARTITIONS,),
    "OffsetForLeaderEpoch": (_OF_PARTITIONS,),
    "AddPartitionsToTxn": (_ADDED, _ADDED),
    "WriteTxnMarkers": ("markers[].topics[].partitions[].error_code",),
    "TxnOffsetCommit": (_OF_PARTITIONS, _OF_PARTITIONS, _OF_PARTITIONS),
    "CreateAcls": (_OF_RESULTS,),
    "DeleteAcls": ("filter_results[].error_code",),
    "DescribeConfigs": (_OF_RESULTS,),
    "AlterConfigs": (_OF_RESPONSES,),
    "IncrementalAlterConfigs": (_OF_RESPONSES,),
    "AlterReplicaLogDirs": ("results[].partitions[].error_code",),
    "CreatePartitions": (_OF_RESULTS,),
    "DeleteGroups": (_OF_RESULTS,),
    "OffsetDelete": (TOP, _OF_PARTITIONS),
    "AlterClientQuotas": ("entries[].error_code",),
    "AlterUserScramCredentials": (_OF_RESULTS,),
    "DescribeProducers": (_OF_PARTITIONS,),
    "DescribeTransactions": ("transaction_states[].error_code",),
    "ConsumerGroupDescribe": (_OF_GROUPS, _OF_GROUPS),
    "DescribeTopicPartitions": (_OF_TOPICS,),
}
"""By API, in the order of its requirements; an API without a row has the code at the top for each of them."""

_ALSO = {
    "AlterPartitionReassignments": "responses[].partitions[].error_code",
    "ElectLeaders": "replica_election_results[].partition_result[].error_code",
    "DescribeUserScramCredentials": _OF_RESULTS,
}
"""APIs that repeat the code of the top for what the request names."""

_EARLIER: dict[tuple[str, int], tuple[str | None, ...]] = {
    ("FindCoordinator", 3): (TOP,),
    ("OffsetFetch", 1): (_OF_PARTITIONS, _OF_PARTITIONS),
    ("ElectLeaders", 0): (_ALSO["ElectLeaders"],),
    ("DescribeLogDirs", 2): (None,),
}
"""The same up to a version, whose responses have another form; None: there is no place for a code."""


def find_places(kind: str, api: str, version: int, requirement: int) -> set[str]:
    """The places that hold the code of a missing right."""
    if (kind, api) == ("controller", "Fetch"):
        return {TOP}
    for (name, last), places in _EARLIER.items():
        if name == api and version <= last:
            place = places[requirement]
            return set() if place is None else {place}
    places = {_PLACES[api][requirement]} if api in _PLACES else {TOP}
    return places | ({_ALSO[api]} if api in _ALSO else set())


def walk_codes(reply: Any, path: str = "") -> Iterator[tuple[str, int]]:
    """Every error code of a reply, with its place."""
    if isinstance(reply, tuple | list):
        for item in reply:
            yield from walk_codes(item, f"{path}[]")
    elif hasattr(reply, "__dataclass_fields__"):
        for name in reply.__dataclass_fields__:
            value, place = getattr(reply, name), f"{path}.{name}".removeprefix(".")
            if name.endswith("error_code"):
                yield place, int(value)
            else:
                yield from walk_codes(value, place)
