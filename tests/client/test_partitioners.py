"""Where records go: hashes as Java and librdkafka have them, and the sticky choice."""

import random

import pytest

from klamm.client.producer.core.partitioners import RoundRobin, Sticky, by_crc32, by_murmur2, partitioner
from klamm.model.errors import ConfigError
from klamm.records.kernels.partitioning import murmur2

# The values Kafka's own tests expect of Utils.murmur2, as signed 32-bit numbers.
JAVA = {
    b"21": -973932308,
    b"foobar": -790332482,
    b"a-little-bit-long-string": -985981536,
    b"a-little-bit-longer-string": -1486304829,
    b"lkjh234lh9fiuh90y23oiuhsafujhadof229phr9h19h89h8": -58897971,
    b"abc": 479470107,
}


@pytest.mark.parametrize(("key", "value"), JAVA.items())
def test_murmur2_is_kafkas(key, value):
    assert murmur2(key) == value & 0xFFFFFFFF
    assert by_murmur2(key, 100) == (value & 0x7FFFFFFF) % 100


def test_named_partitioners():
    chance = random.Random(1)
    choose = {name: partitioner(name, chance) for name in ("default", "murmur2", "murmur2_random", "consistent_random")}
    assert choose["default"]("t", None, 5) == -1
    assert choose["default"]("t", b"", 5) == by_murmur2(b"", 5)
    assert choose["murmur2"]("t", None, 5) == by_murmur2(b"", 5)
    assert choose["murmur2_random"]("t", b"k", 5) == by_murmur2(b"k", 5)
    assert 0 <= choose["murmur2_random"]("t", None, 5) < 5
    assert choose["consistent_random"]("t", b"k", 5) == by_crc32(b"k", 5)
    assert partitioner("default", chance, ignore_keys=True)("t", b"k", 5) == -1


def test_round_robin_goes_round_each_topic():
    choose = RoundRobin()
    assert [choose("a", None, 3) for _ in range(4)] == [0, 1, 2, 0]
    assert choose("b", b"key", 3) == 0


def test_a_function_may_choose_and_is_checked():
    chance = random.Random(1)
    assert partitioner(lambda _topic, _key, count: count - 1, chance)("t", b"k", 4) == 3
    with pytest.raises(ValueError, match="chose 4"):
        partitioner(lambda _topic, _key, count: count, chance)("t", b"k", 4)
    with pytest.raises(ConfigError, match="murmur2_random"):
        partitioner("murmur3", chance)


def test_sticky_stays_for_a_batch():
    sticky = Sticky(100, random.Random(1))
    first = sticky.switch(4)
    assert not sticky.add(60)
    assert sticky.partition == first
    assert sticky.add(60)


def test_sticky_prefers_what_is_less_queued_and_passes_over_what_is_out_of_reach():
    print("seed 7")
    sticky = Sticky(100, random.Random(7))
    chosen = [sticky.switch(4, [0, 9, 9, -1]) for _ in range(2000)]
    assert 3 not in chosen
    assert chosen.count(0) > 2 * chosen.count(1)
    assert sticky.switch(2, [-1, -1]) in (0, 1)
