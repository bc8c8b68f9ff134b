"""A reply that is lost makes the producer send again; the log must hold every record once, in order.

The proxy ends the connection after the node has answered and before the answer arrives. Which replies are lost comes
from a seed, printed when a test fails.
"""

import os
import random

import pytest

from harness import CuttingProxy, KlammProcess, unique
from harness.clients import ALL

# kafka-python leaves the sockets of failed connections to the garbage collector.
pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")

ROUND = 20
ROUNDS_MIN, ROUNDS_MAX = 20, 400
CUTS_MIN = 3
CHANCE = 0.25
SEED = int(os.environ.get("KLAMM_SEED", random.SystemRandom().randrange(2**32)))


@pytest.fixture(scope="module")
def proxied(tmp_path_factory):
    """A node that advertises the proxy's address."""
    with CuttingProxy(SEED) as proxy:
        overrides = {"advertised.listeners": f"PLAINTEXT://{proxy.bootstrap}"}
        with KlammProcess(tmp_path_factory.mktemp("proxied"), overrides=overrides) as klamm:
            proxy.target_port = klamm.port
            yield proxy
            klamm.stop()


@pytest.mark.parametrize("kind", ALL, ids=lambda kind: kind.name)
def test_lost_replies_make_no_duplicate_and_no_gap(proxied, kind):
    print(f"KLAMM_SEED={SEED}")
    topic = unique("cut")
    client = kind(proxied.bootstrap)
    try:
        client.create_topic(topic, partitions=2)
        before = proxied.cuts
        with client.producer(idempotent=True) as producer:
            producer.send(topic, b"-1", partition=0)
            producer.send(topic, b"-1", partition=1)
            assert [fate.error for fate in producer.flush()] == [0, 0]
            proxied.chance = CHANCE
            fates = []
            sent = 0
            # A client that sends few requests may be lucky for long: it goes on until replies were lost.
            while sent < ROUNDS_MIN * ROUND or (proxied.cuts - before < CUTS_MIN and sent < ROUNDS_MAX * ROUND):
                for number in range(sent, sent + ROUND):
                    producer.send(topic, b"%d" % number, partition=number % 2)
                fates += producer.flush()
                sent += ROUND
            proxied.chance = 0.0
        assert {fate.error for fate in fates} == {0}
        assert proxied.cuts - before >= CUTS_MIN, "nothing was cut, so nothing was tested"
        for partition in range(2):
            assert client.end(topic, partition) == sent // 2 + 1
            rows = client.read(topic, sent // 2 + 1, partition=partition)
            assert [int(row.value) for row in rows] == [-1, *range(partition, sent, 2)]
            offsets = [fate.offset for fate in fates if fate.partition == partition]
            # librdkafka reports -1 for a batch that was only acknowledged as a duplicate.
            assert all(offset in (expected, -1) for offset, expected in zip(offsets, range(1, sent), strict=False))
    finally:
        proxied.chance = 0.0
        client.close()
