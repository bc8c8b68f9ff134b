"""Which replica a consumer should read from (KIP-392): one in its own rack, if that has the offset."""

from klamm.metadata.image import ClusterImage
from klamm.replication.replica import Replica


def nearest_replica(cluster: ClusterImage, replica: Replica, rack: str, offset: int) -> int:
    """The leader if it is in the rack or no other replica is, otherwise the in-sync replica there that has most."""
    state = replica.state
    leader = cluster.get(state.node_id)
    if leader is None or leader.rack == rack:
        return state.node_id
    best, best_rank = state.node_id, (-1, -1)
    for follower, progress in state.followers.items():
        broker = cluster.get(follower)
        if broker is None or broker.fenced or broker.rack != rack or follower not in state.isr:
            continue
        # Or the consumer would get OFFSET_OUT_OF_RANGE there and reset its position.
        if not max(progress.log_start_offset, 0) <= offset <= progress.log_end_offset:
            continue
        rank = (progress.log_end_offset, progress.caught_up_ms)
        if rank > best_rank:
            best, best_rank = follower, rank
    return best
