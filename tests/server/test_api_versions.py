"""ApiVersions: the first question of every client, with its traps."""

import pytest

from harness.wire import API_KEYS, Wire, parse_reply, request_bytes
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import APIS
from klamm.server.requests.routes import SERVED

NAMES = {api.key: api.family for api in APIS.values()}
SOFTWARE = {"client_software_name": "wire-tests", "client_software_version": "1.0"}


@pytest.mark.parametrize("version", range(5))
def test_it_lists_what_is_served_and_nothing_else(wire, version):
    reply = wire.call("api_versions", version, **SOFTWARE)
    assert reply.error_code == 0
    listed = {entry.api_key: (entry.min_version, entry.max_version) for entry in reply.api_keys}
    assert listed == {api.key: api.advertised for api in APIS.values() if api.name in SERVED}
    assert listed[0] == (0, 13)  # librdkafka takes a higher minimum of Produce for a broker that cannot compress


def test_a_version_of_the_future_is_answered_as_v0_with_one_entry(wire):
    request = bytearray(request_bytes("api_versions", 4, 7, "client", **SOFTWARE))
    request[2:4] = (99).to_bytes(2, "big")
    wire.send_frame(bytes(request) + b"unknown bytes")
    reply = parse_reply(wire.receive_frame(), "api_versions", 0, 7)
    assert reply.error_code == ErrorCode.UNSUPPORTED_VERSION
    assert [(e.api_key, e.min_version, e.max_version) for e in reply.api_keys] == [(18, 0, 4)]
    assert wire.call("api_versions", 4, **SOFTWARE).error_code == 0  # the connection goes on


def test_the_reply_header_is_v0_even_where_the_request_is_flexible(wire):
    wire.send_frame(request_bytes("api_versions", 4, 0x01020304, None, **SOFTWARE))
    frame = wire.receive_frame()
    assert frame[:6] == b"\x01\x02\x03\x04\x00\x00"  # correlation id, then the error code: no tag section in between


@pytest.mark.parametrize(
    ("name", "version"),
    [("", "1.0"), ("a b", "1.0"), ("-a", "1.0"), ("a-", "1.0"), ("java", ""), ("java", "1 0"), ("é", "1")],
)
def test_a_client_that_names_itself_badly_is_refused(wire, name, version):
    reply = wire.call("api_versions", 3, client_software_name=name, client_software_version=version)
    assert reply.error_code == ErrorCode.INVALID_REQUEST
    assert wire.call("api_versions", 3, **SOFTWARE).error_code == 0


def test_older_versions_hide_features_that_may_be_off(wire):
    old, new = (wire.call("api_versions", version, **SOFTWARE) for version in (3, 4))
    assert all(feature.min_version > 0 for feature in old.supported_features)
    assert {feature.name for feature in old.supported_features} == {"metadata.version"}
    assert any(feature.min_version == 0 for feature in new.supported_features)
    for reply in (old, new):
        assert reply.finalized_features_epoch >= 0
        assert all(feature.max_version_level > 0 for feature in reply.finalized_features)
        assert "metadata.version" in {feature.name for feature in reply.finalized_features}


def sweep():
    for api in APIS.values():
        if api.name in SERVED:
            for version in range(api.versions[0], api.versions[1] + 1):
                yield pytest.param(NAMES[api.key], version, id=f"{api.name}-v{version}")


@pytest.mark.parametrize(("api", "version"), list(sweep()))
def test_every_version_that_is_advertised_is_answered(klamm, api, version):
    """Every field at its zero: the reply has the right form, whatever it says."""
    fields = {"acks": 1} if api == "produce" else SOFTWARE if api == "api_versions" else {}
    with Wire(klamm.port) as wire:
        wire.call(api, version, **fields)
        wire.call(api, version, **fields)
    assert api in API_KEYS


@pytest.mark.parametrize("version", [3, 4])
def test_the_finalized_epoch_follows_the_metadata(wire, version):
    before = wire.call("api_versions", version, **SOFTWARE).finalized_features_epoch
    wire.create_topic()
    # The topic is known to this broker, so its image has moved on.
    assert wire.call("api_versions", version, **SOFTWARE).finalized_features_epoch > before
