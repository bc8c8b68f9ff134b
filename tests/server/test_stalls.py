"""A node that stood still for longer than a broker's session does not fence itself when it goes on.

No older test stops a node that is alone: in a cluster the others elect another controller meanwhile. On a busy machine
a single node that did not run for nine seconds had no leaders for a moment, and commands failed.
"""

import time

from harness import KlammProcess, Wire, batch

OVERRIDES = {"broker.session.timeout.ms": "2500", "broker.heartbeat.interval.ms": "1900"}
"""As the defaults, a heartbeat is mostly due later than the controller's next look at sessions."""


def test_a_node_that_was_stopped_keeps_its_leaders(tmp_path):
    with KlammProcess(tmp_path, overrides=OVERRIDES) as node, Wire(node.port) as wire:
        topic = wire.create_topic()
        for _ in range(2):
            node.pause()
            time.sleep(3.5)  # longer than a session: nothing but time ends it
            node.resume()
            deadline = time.monotonic() + 1.0
            while time.monotonic() < deadline:
                [partition] = wire.call("metadata", 12, topics=[{"name": topic}]).topics[0].partitions
                assert (partition.leader_id, partition.leader_epoch) == (1, 0)
                time.sleep(0.02)
        assert wire.produce(topic, batch(b"x")).error_code == 0
