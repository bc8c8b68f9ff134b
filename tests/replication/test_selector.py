"""Which replica a consumer reads from: one in its rack that has what it asks for (KIP-392)."""

from types import SimpleNamespace

import pytest

from klamm.metadata.image import BrokerImage, ClusterImage, PartitionImage
from klamm.replication.core.partition import PartitionState
from klamm.replication.selector import nearest_replica

RACKS = {1: "a", 2: "b", 3: "b", 4: "c"}


def cluster(fenced=()):
    return ClusterImage(
        {n: BrokerImage(n, 1, b"i" * 16, {}, rack=rack, fenced=n in fenced) for n, rack in RACKS.items()}
    )


def leader(isr=(1, 2, 3, 4), ends=None, starts=None):
    state = PartitionState(1)
    state.apply(PartitionImage((1, 2, 3, 4), isr, 1, 0, 0), 100)
    for follower in (2, 3, 4):
        end, start = (ends or {}).get(follower, 100), (starts or {}).get(follower, 0)
        state.on_follower_fetch(follower, end, 100, 0, log_start_offset=start)
    return SimpleNamespace(state=state)


@pytest.mark.parametrize(
    ("rack", "isr", "ends", "expected"),
    [
        ("a", (1, 2, 3, 4), {}, 1),
        ("nowhere", (1, 2, 3, 4), {}, 1),
        ("c", (1, 2, 3, 4), {}, 4),
        ("c", (1, 2, 3), {}, 1),
        ("b", (1, 2, 3, 4), {2: 60}, 3),
        ("b", (1, 2, 3, 4), {3: 60}, 2),
        ("b", (1, 2, 3, 4), {2: 40, 3: 40}, 1),
    ],
    ids=["own rack", "no such rack", "there", "not in sync", "furthest", "furthest again", "no replica has it"],
)
def test_the_nearest_that_has_it(rack, isr, ends, expected):
    assert nearest_replica(cluster(), leader(isr, ends), rack, 50) == expected


def test_who_is_fenced_or_begins_later_is_passed_over():
    assert nearest_replica(cluster(fenced=(4,)), leader(), "c", 50) == 1
    assert nearest_replica(cluster(), leader(starts={4: 60}), "c", 50) == 1
