"""Reading by assignment: seeking, beginnings and ends, offsets by time."""

import pytest

from harness import unique

NOW_MS = 1_700_000_000_000


@pytest.fixture(scope="module")
def topic(client):
    """100 records, a second apart, in many small batches."""
    name = unique("offsets")
    client.create_topic(name)
    with client.producer() as producer:
        for number in range(100):
            producer.send(name, b"%d" % number, timestamp=NOW_MS + number * 1000, partition=0)
            if number % 7 == 0:
                producer.flush()
        producer.flush()
    return name


@pytest.mark.parametrize("offset", [0, 1, 6, 7, 8, 50, 99])
def test_reading_starts_at_any_offset(client, topic, offset):
    rows = client.read(topic, 100 - offset, offset=offset)
    assert [int(row.value) for row in rows] == list(range(offset, 100))


def test_beginning_and_end(client, topic):
    assert (client.beginning(topic), client.end(topic)) == (0, 100)


@pytest.mark.parametrize(
    ("after", "offset"), [(-5000, 0), (0, 0), (1, 1), (999, 1), (1000, 1), (50_500, 51), (99_000, 99), (99_001, None)]
)
def test_offsets_by_time(client, topic, after, offset):
    assert client.offset_at(topic, NOW_MS + after) == offset


def test_an_empty_topic(client):
    name = unique("empty")
    client.create_topic(name)
    assert (client.beginning(name), client.end(name), client.offset_at(name, NOW_MS)) == (0, 0, None)


def test_a_reader_waits_for_what_comes_later(client):
    name = unique("later")
    client.create_topic(name)
    with client.producer() as producer:
        for number in range(20):
            producer.send(name, b"%d" % number, partition=0)
            producer.flush()
            assert client.read(name, 1, offset=number)[0].value == b"%d" % number
