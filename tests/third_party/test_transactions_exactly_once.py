"""Exactly once from topic to topic: whatever crashes, the output is the input, once, in order per partition."""

import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from harness import KlammProcess, Wire, batch, unique

from .copier import BEYOND_HELP
from .transactional import ConfluentTxn, read_all

SEED = int(os.environ.get("KLAMM_SEED", random.SystemRandom().randrange(2**32)))
PARTITIONS = 2
RECORDS = 300
PATIENCE_S = 90.0
COPIER = Path(__file__).with_name("copier.py")


def copy(klamm: KlammProcess, source: str, target: str, chance: random.Random) -> int:
    """Run the copier, and run it again whenever it died; returns how often it did."""
    name = unique("copier")
    deadline = time.monotonic() + PATIENCE_S
    deaths = 0
    while True:
        left = deadline - time.monotonic()
        assert left > 0, f"the copy did not end; the copier died {deaths} times"
        command = [sys.executable, str(COPIER), klamm.bootstrap, source, target, name, str(RECORDS), str(PARTITIONS)]
        ended = subprocess.run([*command, str(chance.randrange(2**32))], timeout=left, check=False).returncode
        if ended == 0:
            return deaths
        assert ended in (-signal.SIGKILL, BEYOND_HELP), ended
        deaths += 1


@pytest.mark.parametrize("kills", [0, 3], ids=["steady broker", "kill -9"])
def test_a_copy_is_exact_whoever_dies(tmp_path, kills):
    print(f"KLAMM_SEED={SEED}")
    chance = random.Random(SEED)
    with KlammProcess(tmp_path) as klamm:
        with Wire(klamm.port) as wire:
            source, target = wire.create_topic(partitions=PARTITIONS), wire.create_topic(partitions=PARTITIONS)
            values = [[b"%d/%d" % (index, number) for number in range(RECORDS)] for index in range(PARTITIONS)]
            for index, mine in enumerate(values):
                assert wire.produce(source, batch(*mine), partition=index).error_code == 0
        stop = threading.Event()
        moments = [0.3 + 2 * chance.random() for _ in range(kills)]

        def kill_now_and_then() -> None:
            for moment in moments:
                if stop.wait(moment):
                    return
                klamm.restart(clean=False)

        killer = threading.Thread(target=kill_now_and_then)
        killer.start()
        try:
            deaths = copy(klamm, source, target, chance)
        finally:
            stop.set()
            killer.join()
        print(f"the copier died {deaths} times")
        expected = [[b"<" + value + b">" for value in mine] for mine in values]
        assert read_all(klamm.bootstrap, target, partitions=PARTITIONS) == expected


def test_a_decided_transaction_is_completed_after_a_crash(tmp_path):
    """The broker dies right after commits were answered; nothing of them is missing afterwards, nothing hangs."""
    with KlammProcess(tmp_path) as klamm:
        with Wire(klamm.port) as wire:
            topic = wire.create_topic(partitions=4)
        expected = []
        for round_number in range(3):
            producer = ConfluentTxn(klamm.bootstrap, "crash")
            producer.begin()
            for index in range(4):
                producer.send(topic, b"%d" % round_number, index)
            producer.commit()
            klamm.kill9()
            expected.append(b"%d" % round_number)
            producer.close()
            klamm.start()
        assert read_all(klamm.bootstrap, topic, partitions=4) == [expected] * 4
        with Wire(klamm.port) as wire:
            states = wire.call("list_transactions", 0).transaction_states
            assert {state.transaction_state for state in states} == {"CompleteCommit"}
