"""Every message in every version agrees with kio, byte for byte, in both directions."""

import dataclasses
import datetime as dt
import io
import uuid
from typing import get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from klamm.protocol import APIS, decode, encode
from klamm.protocol.messages.consumer_protocol import ConsumerProtocolAssignment, ConsumerProtocolSubscription
from klamm.protocol.messages.default_principal import DefaultPrincipalData
from klamm.protocol.schema import Array, declaration

EPOCH = dt.datetime.fromtimestamp(0, dt.UTC)
MILLISECOND = dt.timedelta(milliseconds=1)


def plain(value, ours):
    """A value of kio's as Klamm holds it."""
    if isinstance(value, dt.timedelta):
        return round(value / MILLISECOND)
    if isinstance(value, dt.datetime):
        return round((value - EPOCH) / MILLISECOND)
    if isinstance(value, uuid.UUID):
        return value.bytes
    if value is None and isinstance(ours, bytes) and len(ours) == 16:
        return bytes(16)
    if value is None and ours == -1:
        return -1
    if value is None and type(ours) is list and not ours:
        return None
    return value


def same(theirs, ours, path):
    """Compare by the names of kio's fields, so that no two fields can be swapped unnoticed."""
    if dataclasses.is_dataclass(theirs):
        if ours is None:  # an absent tagged struct, which kio shows as its default
            for field in dataclasses.fields(theirs):
                assert getattr(theirs, field.name) in (field.default, 0, ""), path
            return
        for field in dataclasses.fields(theirs):
            name = our_name(ours, field.name)
            same(getattr(theirs, field.name), getattr(ours, name), f"{path}.{name}")
    elif isinstance(theirs, tuple):
        assert len(theirs) == len(ours), path
        for index, (their, our) in enumerate(zip(theirs, ours, strict=True)):
            same(their, our, f"{path}[{index}]")
    else:
        assert plain(theirs, ours) == ours, path


def our_name(ours, name):
    """Kio drops the unit of durations and cuts two names elsewhere."""
    name = RENAMED.get(name, name).rstrip("_")
    return name if hasattr(ours, name) else f"{name}_ms"


RENAMED = {"k_raft_version_feature": "kraft_version_feature", "enable2_pc": "enable_2pc"}


def check(cls, version, entity, maker, seed):
    from kio.serial import entity_reader, entity_writer

    message = maker(seed).message(cls, version)
    data = encode(message, version)
    theirs, size = entity_reader(entity)(data, 0)
    assert size == len(data)
    same(theirs, decode(cls, version, data)[0], cls.__name__)

    out = io.BytesIO()
    entity_writer(entity)(out, theirs)
    assert out.getvalue() == data
    again, end = decode(cls, version, memoryview(out.getvalue()))
    assert end == len(data)
    assert encode(again, version) == data


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
@settings(max_examples=40)
@given(seed=st.integers(0, 2**64))
def test_agrees_with_kio(api, maker, seed):
    from kio.index import load_request_schema, load_response_schema

    first, last = declaration(api.request).versions
    for version in range(first, last + 1):
        check(api.request, version, load_request_schema(api.key, version), maker, seed)
        check(api.response, version, load_response_schema(api.key, version), maker, seed)


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_defaults_agree_with_kio(api):
    from kio.index import load_request_schema, load_response_schema

    last = declaration(api.request).versions[1]
    same_defaults(load_request_schema(api.key, last), api.request)
    same_defaults(load_response_schema(api.key, last), api.response)


def same_defaults(entity, cls):
    """Where kio has a default it is ours; where it has none ours is the zero of the type."""
    ours = {field.name: field for field in declaration(cls).fields}
    for theirs in dataclasses.fields(entity):
        mine = ours[our_name(cls, theirs.name)]
        inner = mine.type.element if isinstance(mine.type, Array) else mine.type
        if isinstance(inner, type):
            for part in (theirs.type, *get_args(theirs.type), *(p for a in get_args(theirs.type) for p in get_args(a))):
                if dataclasses.is_dataclass(part):
                    same_defaults(part, inner)
        elif theirs.default is not dataclasses.MISSING and theirs.default != ():
            assert plain(theirs.default, mine.make_default()) == mine.make_default(), f"{cls.__name__}.{mine.name}"
        else:
            assert not mine.make_default() or mine.default == bytes(16), f"{cls.__name__}.{mine.name}"


@pytest.mark.parametrize("version", range(4))
@settings(max_examples=40)
@given(seed=st.integers(0, 2**64))
def test_consumer_protocol_agrees_with_kio(version, maker, seed):
    from kio.index import load_entity_schema
    from kio.static.constants import EntityType

    for cls in (ConsumerProtocolSubscription, ConsumerProtocolAssignment):
        name = "consumer_protocol_" + cls.__name__.removeprefix("ConsumerProtocol").lower()
        check(cls, version, load_entity_schema(name, version, EntityType.data), maker, seed)


@settings(max_examples=40)
@given(seed=st.integers(0, 2**64))
def test_principal_agrees_with_kio(maker, seed):
    from kio.index import load_entity_schema
    from kio.static.constants import EntityType

    check(DefaultPrincipalData, 0, load_entity_schema("default_principal_data", 0, EntityType.data), maker, seed)
