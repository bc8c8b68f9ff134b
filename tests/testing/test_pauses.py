"""A pause holds from the moment `pause` returns, and a broker that was paused ends like any other.

The older tests paused a broker and then made a client, which takes longer than the loop needs to stand still, and left
a paused child by `heal`, which waits for an answer: neither could see that `pause` returned too early, nor that SIGTERM
right after SIGCONT was not noticed.
"""

import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

import klamm.testing

WAITS_FOR_A_SIGNAL = """
import signal, threading, time
from klamm.testing.child import _EndSignal

ending = _EndSignal()

def interrupt_this_thread():
    time.sleep(0.2)  # the main thread waits by now; were it not, the test would only be weaker
    signal.pthread_kill(threading.get_ident(), signal.SIGTERM)

threading.Thread(target=interrupt_this_thread).start()
ending.wait()
print("ended")
"""


def test_pause_returns_when_the_loop_stands_still():
    with klamm.testing.broker() as broker:
        loop = broker._require_running().loop
        turned = threading.Event()
        loop.call_soon_threadsafe(time.sleep, 0.3)  # the loop is busy when it is asked to pause
        loop.call_soon_threadsafe(turned.set)
        broker.pause()
        assert turned.is_set()
        went_on = threading.Event()
        loop.call_soon_threadsafe(went_on.set)
        assert not went_on.wait(0.2)
        broker.resume()
        assert went_on.wait(30)


@pytest.mark.parametrize("child", [False, True])
def test_a_record_sent_during_a_pause_is_not_acknowledged(child):
    with klamm.testing.broker(child=child) as broker, broker.producer(linger_ms=0) as producer:
        topic = broker.topic()
        producer.send(topic, b"before").result(30)
        for number in range(10):
            broker.pause()
            delivery = producer.send(topic, b"%d" % number)
            with pytest.raises(TimeoutError):
                delivery.result(0.1)
            broker.resume()
            delivery.result(30)


def test_a_node_of_a_cluster_stands_still_when_pause_returns():
    with klamm.testing.cluster(3) as cluster:
        node = cluster.nodes[0]
        for _ in range(5):
            node.pause()
            state = Path(f"/proc/{node.pid}/stat")
            if state.exists():
                assert state.read_text().rpartition(")")[2].split()[0] == "T"
            node.resume()


def test_a_signal_that_another_thread_got_ends_a_child():
    run = subprocess.run(
        [sys.executable, "-c", WAITS_FOR_A_SIGNAL], capture_output=True, text=True, timeout=60, check=False
    )
    assert (run.returncode, run.stdout) == (0, "ended\n"), run.stderr


def test_a_child_that_was_paused_ends_at_once():
    for _ in range(6):
        with klamm.testing.broker(child=True) as broker:
            broker.pause()
            broker.resume()
