"""Listeners that are served before the authorizer has read the ACLs: only super users may do something there."""

import asyncio
import threading

import pytest

from harness.inprocess import NodeThread
from harness.wire import Wire
from klamm.model.errors import ConfigError, ErrorCode
from klamm.server.boot.config import embedded_properties, parse_config
from klamm.server.cluster.lifecycle import BrokerLifecycle
from klamm.server.node import KlammNode

LISTENERS = (
    "listeners=PLAINTEXT://127.0.0.1:0,ADMIN://127.0.0.1:0,CONTROLLER://127.0.0.1:0",
    "listener.security.protocol.map=PLAINTEXT:PLAINTEXT,ADMIN:PLAINTEXT,CONTROLLER:PLAINTEXT",
    "early.start.listeners=CONTROLLER,admin",
    "authorizer.class.name=org.apache.kafka.metadata.authorizer.StandardAuthorizer",
    "super.users=User:node",
    "allow.everyone.if.no.acl.found=true",
)


def test_an_early_listener_is_served_before_the_others(tmp_path, monkeypatch):
    following, may_go_on = threading.Event(), threading.Event()
    become_ready = BrokerLifecycle.become_ready

    async def wait(self):
        following.set()
        await asyncio.to_thread(may_go_on.wait, 60)
        await become_ready(self)

    monkeypatch.setattr(BrokerLifecycle, "become_ready", wait)
    thread = NodeThread(tmp_path, *LISTENERS)
    created: list[KlammNode] = []

    def make(config):
        created.append(KlammNode(config))
        return created[0]

    monkeypatch.setattr("harness.inprocess.KlammNode", make)
    thread._thread.start()
    try:
        assert following.wait(60)
        node = created[0]
        with Wire(node.addresses["ADMIN"][1]) as admin, Wire(node.addresses["PLAINTEXT"][1]) as client:
            assert admin.call("api_versions", 0).error_code == 0
            # The ACLs are not read yet, and one of them could be a DENY.
            node.services.access.authorizer.ready = False
            topics = admin.call("metadata", 12, topics=[{"name": "orders", "topic_id": bytes(16)}]).topics
            assert topics[0].error_code == ErrorCode.TOPIC_AUTHORIZATION_FAILED
            client.send("api_versions", 0)
            assert client.is_silent()
            may_go_on.set()
            assert client.receive("api_versions", 0).error_code == 0
            topics = admin.call("metadata", 12, topics=[{"name": "orders", "topic_id": bytes(16)}]).topics
            assert topics[0].error_code != ErrorCode.TOPIC_AUTHORIZATION_FAILED
    finally:
        may_go_on.set()
        thread.node = thread._ready.result(60)
        thread.__exit__()


@pytest.mark.parametrize(
    ("setting", "complaint"),
    [
        ("early.start.listeners=CONTROLLER,NOWHERE", "early.start.listeners names NOWHERE, which is not in listeners"),
        ("early.start.listeners=PLAINTEXT", "leaves out controller listener CONTROLLER"),
    ],
)
def test_names_that_cannot_be_meant_stop_the_start(setting, complaint):
    with pytest.raises(ConfigError, match=complaint):
        parse_config(embedded_properties("/nowhere", 0), [setting])
