"""How many array elements and tagged fields one request may carry, by API.

An element of one byte on the wire becomes an object of a few hundred bytes and some microseconds of work in the
handler. A frame of megabytes can declare millions of them, so their number is bounded before any is made.
The bounds are far above what clients send; the frame's size bounds what one element may hold.
"""

ELEMENTS_MAX = 10_000
"""For an API that is not named below: ten thousand topics, groups or resources in one request."""

HEADER_TAGS_MAX = 100
"""Tagged fields of a request header; no version of the protocol has more than a few."""

UNBOUNDED = 1 << 62
"""For responses, which come from a node that this one sent a request to."""

_BY_API = {
    1: 40_000,  # Fetch: the first request of a follower's session names every partition it copies from that leader
    2: 20_000,  # ListOffsets: an admin client names every partition of a cluster at once
    8: 20_000,  # OffsetCommit
    23: 20_000,  # OffsetForLeaderEpoch: a follower after an election
    24: 5_000,  # AddPartitionsToTxn: a transaction costs more than an element elsewhere
    28: 20_000,  # TxnOffsetCommit
    30: 20_000,  # CreateAcls: more than 10,000 are refused with an error of their own, as in Kafka
    45: 20_000,  # AlterPartitionReassignments: a whole cluster is moved in one plan
    56: 40_000,  # AlterPartition: every partition of a broker after an election
    73: 40_000,  # AssignReplicasToDirs
}


def elements_max(api_key: int) -> int:
    """The bound of an API's requests."""
    return _BY_API.get(api_key, ELEMENTS_MAX)
