"""A broker that left is still named for a session: clients notice themselves that it does not answer.

Breaks when Metadata leaves out a dead broker at once, or names one for good.
"""

import uuid
from dataclasses import replace

from klamm.metadata.delta import MetadataDelta
from klamm.metadata.image import EMPTY_IMAGE, BrokerImage, ClusterImage, Endpoint
from klamm.model.clock import ManualClock
from klamm.server.cluster.listed_brokers import ListedBrokers

KEEP_MS = 9_000


def broker(broker_id, *, fenced=False):
    return BrokerImage(
        id=broker_id,
        epoch=1,
        incarnation_id=uuid.UUID(int=broker_id),
        endpoints={"PLAINTEXT": Endpoint("127.0.0.1", 9092, 0)},
        fenced=fenced,
    )


class Followed:
    """An address book and the image it has followed so far."""

    def __init__(self, *live):
        self.clock = ManualClock()
        self.book = ListedBrokers(self.clock, KEEP_MS)
        self.image = EMPTY_IMAGE
        self.now(*(broker(broker_id) for broker_id in live))

    def now(self, *brokers):
        image = replace(self.image, cluster=ClusterImage(brokers={made.id: made for made in brokers}))
        self.book.on_metadata_update(MetadataDelta(self.image), image)
        self.image = image

    def names(self):
        return sorted(made.id for made in self.book.list_brokers(self.image.cluster))


def test_a_fenced_broker_is_named_for_a_session_more():
    followed = Followed(1, 2)
    followed.now(broker(1), broker(2, fenced=True))
    assert followed.names() == [1, 2]
    followed.clock.advance(KEEP_MS - 1)
    assert followed.names() == [1, 2]
    followed.clock.advance(1)
    assert followed.names() == [1]


def test_what_else_changes_does_not_make_it_longer():
    followed = Followed(1, 2)
    followed.now(broker(1), broker(2, fenced=True))
    followed.clock.advance(KEEP_MS - 1)
    followed.now(broker(1), broker(2, fenced=True), broker(3))
    followed.clock.advance(1)
    assert followed.names() == [1, 3]


def test_one_that_came_back_and_left_again_is_counted_anew():
    followed = Followed(1, 2)
    followed.now(broker(1), broker(2, fenced=True))
    followed.clock.advance(KEEP_MS - 1)
    followed.now(broker(1), broker(2))
    followed.now(broker(1), broker(2, fenced=True))
    followed.clock.advance(KEEP_MS - 1)
    assert followed.names() == [1, 2]


def test_an_unregistered_broker_is_forgotten_at_once():
    followed = Followed(1, 2)
    followed.now(broker(1), broker(2, fenced=True))
    followed.now(broker(1))
    assert followed.names() == [1]


def test_one_that_was_never_seen_live_is_not_named():
    followed = Followed(1)
    followed.now(broker(1), broker(2, fenced=True))
    assert followed.names() == [1]


def test_all_are_named_when_all_are_fenced_however_long():
    followed = Followed(1, 2)
    followed.now(broker(1, fenced=True), broker(2, fenced=True))
    followed.clock.advance(10 * KEEP_MS)
    assert followed.names() == [1, 2]
