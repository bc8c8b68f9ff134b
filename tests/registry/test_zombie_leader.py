"""A leader that stops for longer than its session while it writes, and goes on: its late write must not count."""

import contextlib
import http.client
import os
import random
import signal
import threading
import time

from klamm.testing import unique

from .processes import RegistryProcess, wait_until
from .small_store import record

QUICK = ("-X", "session.timeout.ms=6000")
"""The shortest session that brokers allow."""
WRITERS = 3


class Writers:
    """Threads that register new schemas at one registry, and remember what was acknowledged."""

    def __init__(self, registry, name):
        self.registry = registry
        self.name = name
        self.acknowledged = {}
        self.failed = set()
        self.begun = set()
        self.stopping = threading.Event()
        self.threads = [threading.Thread(target=self.write, args=(worker,)) for worker in range(WRITERS)]
        for thread in self.threads:
            thread.start()

    def write(self, worker):
        number = 0
        while not self.stopping.is_set():
            number += 1
            subject = f"{self.name}{worker}-{number}"
            self.begun.add(subject)
            body = {"schema": record("R", **{f"f{subject.replace('-', '_')}": False})}
            try:
                answer = self.registry.request("POST", f"/subjects/{subject}/versions", body)
                self.acknowledged[subject] = answer["id"]
            except (OSError, http.client.HTTPException):
                self.failed.add(subject)

    def end(self):
        self.stopping.set()
        for thread in self.threads:
            thread.join(90)
            assert not thread.is_alive()


def stop_in_a_transaction(broker, registry, transactional_id):
    """Stop the process when it has sent records and not committed them; else let it go on, and try again."""
    with broker.admin() as admin:
        for _ in range(1000):
            os.kill(registry.process.pid, signal.SIGSTOP)
            # What it has sent is handled by the broker within some milliseconds.
            states = {admin.describe_transactions([transactional_id])[transactional_id].state for _ in range(5)}
            if states == {"Ongoing"}:
                return
            os.kill(registry.process.pid, signal.SIGCONT)
            time.sleep(random.random() * 0.01)
    raise AssertionError("never stopped in a transaction")


def list_waiting(writers):
    return writers.begun - writers.acknowledged.keys() - writers.failed


def read_ids(registry):
    ids = {}
    while page := registry.request("GET", f"/schemas?deleted=true&offset={len(ids)}"):
        ids |= {row["subject"]: row["id"] for row in page}
    return ids


def test_a_leader_that_was_stopped_while_it_wrote_is_fenced(klamm_broker):
    topic, group = unique("_schemas"), unique("sr")
    registries = [RegistryProcess(klamm_broker.bootstrap, topic, group, *QUICK) for _ in range(2)]
    writers = []
    try:
        wait_until(
            lambda: all(registry.request("GET", "/master_available")["master_available"] for registry in registries)
        )
        zombie = next(registry for registry in registries if registry.read_readiness()["leading"])
        survivor = next(registry for registry in registries if registry is not zombie)

        at_zombie = Writers(zombie, "z")
        writers.append(at_zombie)
        wait_until(lambda: len(at_zombie.acknowledged) >= 10)
        stop_in_a_transaction(klamm_broker, zombie, f"{group}-{topic}")
        # The other one takes over, and has everything that was acknowledged.
        wait_until(lambda: survivor.read_readiness()["leading"])
        # Answers that were sent before the stop are read by now.
        wait_until(lambda: len(list_waiting(at_zombie)) == WRITERS)
        before = dict(at_zombie.acknowledged)
        late = list_waiting(at_zombie)
        at_survivor = Writers(survivor, "s")
        writers.append(at_survivor)
        wait_until(lambda: len(at_survivor.acknowledged) >= 10)
        for subject, schema_id in before.items():
            assert survivor.request("GET", f"/subjects/{subject}/versions/1")["id"] == schema_id
        assert at_zombie.acknowledged == before

        os.kill(zombie.process.pid, signal.SIGCONT)
        wait_until(lambda: not late & list_waiting(at_zombie))
        wait_until(lambda: zombie.read_readiness()["leader"] == survivor.url)
        assert zombie.read_readiness()["leading"] is False
        for group_of_writers in writers:
            group_of_writers.end()

        # The write that was under way was refused by the cluster; its client got an error or the new leader's answer.
        assert zombie.read_metric("fenced_total") >= 1
        assert survivor.read_metric("fenced_total") == 0
        acknowledged = at_zombie.acknowledged | at_survivor.acknowledged
        assert len(set(acknowledged.values())) == len(acknowledged)
        ids = read_ids(survivor)
        wait_until(lambda: read_ids(zombie) == ids)
        assert acknowledged.items() <= ids.items()
        assert len(set(ids.values())) == len(ids)
        assert [registry.end(signal.SIGTERM) for registry in registries] == [0, 0]
    finally:
        for group_of_writers in writers:
            group_of_writers.stopping.set()
        for registry in registries:
            with contextlib.suppress(ProcessLookupError):
                os.kill(registry.process.pid, signal.SIGCONT)
            registry.end(signal.SIGKILL)
