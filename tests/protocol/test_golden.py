"""Bytes of Kafka 4.3.1's own classes: what they write of an empty message, and messages they read and wrote back."""

import json
from pathlib import Path

import pytest

from klamm.protocol import decode, encode
from klamm.protocol.apis import BY_NAME

GOLDEN = Path(__file__).parent / "golden"


def load(name):
    """The class, the version and the bytes of each entry."""
    entries = []
    for title, text in json.loads((GOLDEN / f"{name}.json").read_text()).items():
        api, kind, version = title.split()
        entries.append(pytest.param(api, kind, int(version[1:]), bytes.fromhex(text), id=title))
    return entries


def class_of(api, kind):
    return getattr(BY_NAME[api], kind)


@pytest.mark.parametrize(("api", "kind", "version", "data"), load("kafka_defaults"))
def test_an_empty_message_is_written_as_kafka_writes_it(api, kind, version, data):
    cls = class_of(api, kind)
    assert encode(cls(), version) == data
    read, end = decode(cls, version, data)
    assert end == len(data)
    assert read == cls()


@pytest.mark.parametrize(("api", "kind", "version", "data"), load("kafka_frames"))
def test_a_full_message_comes_back_as_kafka_wrote_it(api, kind, version, data):
    cls = class_of(api, kind)
    read, end = decode(cls, version, data)
    assert end == len(data)
    assert encode(read, version) == data
