"""The controller's own listener serves what controllers serve, and nothing of a broker."""

import pytest

from harness import NodeThread, Wire, batch, unique
from harness.wire import produce_fields
from klamm.model.errors import ErrorCode
from klamm.protocol.apis import APIS
from klamm.server.requests.routes import SERVED_BY_CONTROLLER


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with NodeThread(tmp_path_factory.mktemp("controller")) as made:
        yield made


@pytest.fixture
def controller(node):
    with Wire(node.node.addresses["CONTROLLER"][1]) as wire:
        yield wire


def test_it_lists_its_own(controller):
    listed = {entry.api_key for entry in controller.call("api_versions", 0).api_keys}
    assert listed == {api.key for api in APIS.values() if api.name in SERVED_BY_CONTROLLER}


def test_brokers_work_is_not_done_here(node):
    for api, version, fields in (("produce", 9, produce_fields("t", batch(b"x"))), ("metadata", 9, {})):
        with Wire(node.node.addresses["CONTROLLER"][1]) as wire:
            wire.send(api, version, **fields)
            assert wire.is_closed_by_peer()


def test_it_describes_the_controllers(node, controller):
    reply = controller.call("describe_cluster", 1, endpoint_type=2)
    assert (reply.error_code, reply.controller_id) == (0, 1)
    assert [(b.broker_id, b.port) for b in reply.brokers] == [(1, node.node.addresses["CONTROLLER"][1])]
    assert controller.call("describe_cluster", 1, endpoint_type=1).error_code == ErrorCode.MISMATCHED_ENDPOINT_TYPE


def test_topics_are_made_through_it(node, controller):
    topic = controller.create_topic(unique("made"))
    with Wire(node.port) as wire:
        assert wire.produce(topic, batch(b"x")).base_offset == 0
    requested = [{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]
    assert controller.call("describe_quorum", 2, topics=requested).topics[0].partitions[0].leader_id == 1
