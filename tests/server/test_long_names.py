"""Names of the largest size that a request can hold: answers that quote them, or make others of them, are sent."""

from types import SimpleNamespace
from unittest.mock import Mock

import pytest

from harness.wire import Wire, unique
from klamm.model.errors import ErrorCode
from klamm.protocol.messages.join_group import JoinGroupResponse
from klamm.server.requests.deferred_reply import DeferredReply

LONGEST = 32_767


@pytest.fixture
def coordinator(wire):
    """A connection to a node whose coordinators serve."""
    for _ in range(500):
        if wire.call("offset_fetch", 7, group_id="g", topics=None, require_stable=False).error_code == ErrorCode.NONE:
            break
        wire.call("find_coordinator", 4, key_type=0, coordinator_keys=["g"])
    return wire


@pytest.mark.parametrize("name", ["g" * LONGEST, "流" * (LONGEST // 3), "\U0001f600" * (LONGEST // 4)])
def test_a_group_that_does_not_exist_is_an_error_that_begins_with_its_name(coordinator, name):
    [group] = coordinator.call("describe_groups", 6, groups=[name]).groups
    assert group.error_code == ErrorCode.GROUP_ID_NOT_FOUND
    assert group.group_id == name
    assert group.error_message.startswith(f"Group {name[:1000]}")


def test_an_unknown_type_of_an_entity_is_an_error(wire):
    entity = [{"entity_type": "t" * LONGEST, "entity_name": None}]
    [entry] = wire.call("alter_client_quotas", 1, entries=[{"entity": entity, "ops": []}], validate_only=True).entries
    assert entry.error_code == ErrorCode.INVALID_REQUEST
    assert "entity type: ttt" in entry.error_message


@pytest.mark.parametrize("version", [4, 9])
def test_a_member_with_a_long_client_id_gets_an_id_that_begins_with_it(klamm, coordinator, version):
    fields = {} if version < 5 else {"group_instance_id": None}
    with Wire(klamm.port, client_id="c" * LONGEST) as client:
        reply = client.call(
            "join_group",
            version,
            group_id=unique("g"),
            session_timeout=6000,
            rebalance_timeout=5000,
            member_id="",
            protocol_type="consumer",
            protocols=[{"name": "range", "metadata": b"words"}],
            **fields,
        )
    assert reply.error_code == ErrorCode.MEMBER_ID_REQUIRED
    assert reply.member_id.startswith("c" * 200)


def test_a_later_reply_that_cannot_be_written_closes_the_connection():
    """Or the replies behind it would wait for ever."""
    channel = Mock()
    context = SimpleNamespace(
        channel=channel, api_key=11, version=9, correlation_id=1, times=None, meter=None, frame=memoryview(b"")
    )
    DeferredReply(context, JoinGroupResponse)(JoinGroupResponse(member_id="x" * 40_000))
    channel.defer().abandon.assert_called_once_with()
    channel.defer().send.assert_not_called()
