"""The table of APIs agrees with the messages and imports none of them."""

import subprocess
import sys

import pytest

from klamm.protocol import APIS, served_on
from klamm.protocol.apis import BY_NAME, flexible_since
from klamm.protocol.schema import declaration


@pytest.mark.parametrize("api", APIS.values(), ids=lambda api: api.name)
def test_each_row_agrees_with_its_messages(api):
    for cls in (api.request, api.response):
        shape = declaration(cls)
        assert shape.api_key == api.key
        assert shape.versions[0] <= api.versions[0] <= api.versions[1] <= shape.versions[1]
        assert shape.flexible_since == flexible_since(api.key)
        assert cls.__doc__
        assert cls.__module__.endswith(f".{api.family}")


def test_versions_kafka_hides_are_not_served():
    assert not BY_NAME["InitProducerId"].serves(6)
    assert BY_NAME["InitProducerId"].serves(5)


def test_produce_is_advertised_from_0_but_served_from_3():
    produce = APIS[0]
    assert produce.advertised == (0, 13)
    assert not produce.serves(2)
    assert all(api.advertised == api.versions for api in APIS.values() if api is not produce)


def test_listeners_serve_what_is_theirs():
    broker = {api.name for api in served_on("broker")}
    controller = {api.name for api in served_on("controller")}
    assert {"Produce", "Metadata", "JoinGroup"} <= broker - controller
    assert {"Vote", "BrokerHeartbeat", "AllocateProducerIds"} <= controller - broker
    assert {"ApiVersions", "Fetch", "CreateTopics", "DescribeQuorum"} <= broker & controller


def test_the_table_imports_no_message():
    code = "import klamm.protocol.apis, sys; print([m for m in sys.modules if 'protocol.messages' in m])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_family_is_imported_alone():
    code = (
        "import sys; from klamm.protocol import APIS; APIS[12].request;"
        "print(sorted(m for m in sys.modules if 'protocol.messages.' in m))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "['klamm.protocol.messages.heartbeat']"
