"""Half a minute of hostile requests of every API and version, logins, TLS records and texts: a node answers or closes
that one connection, and a reader refuses with its own error.

The seed is printed; KLAMM_SEED replays it, KLAMM_FUZZ_SECONDS makes it longer, and `make fuzz` runs it by hand.
"""

import os
import random
import socket
import time

import pytest

from fuzz import campaign, logins, texts
from fuzz.campaign import Campaign, Violation
from fuzz.logins import ATTACKS, LoginCampaign, SecuredProcess
from fuzz.texts import TARGETS, BrokenPromise, Target, run_texts
from harness import KlammProcess, Wire

SEED = int(os.environ.get("KLAMM_SEED", random.SystemRandom().randrange(2**32)))
SECONDS = float(os.environ.get("KLAMM_FUZZ_SECONDS", "10"))
LOGIN_SECONDS = float(os.environ.get("KLAMM_FUZZ_SECONDS", "6"))
TEXT_CASES = 60


@pytest.mark.timeout(SECONDS + 300)
def test_hostile_requests_of_every_api(tmp_path):
    print(f"KLAMM_SEED={SEED}")
    with KlammProcess(tmp_path) as node:
        outcome = Campaign(node, SEED).run(SECONDS)
        print(outcome)
        assert outcome.frames > 0
        node.stop()


@pytest.mark.timeout(300)
def test_what_a_node_takes_of_the_machine_is_judged(tmp_path, monkeypatch):
    """A campaign that never complains proves nothing: with a limit below what is taken it must."""
    print(f"KLAMM_SEED={SEED}")
    complaints = {
        "MEMORY_BYTES_MAX": "memory has grown",
        "DESCRIPTORS_MAX": "more descriptors",
        "SOCKETS_MAX": "more sockets",
    }
    with KlammProcess(tmp_path) as node:
        for limit, complaint in complaints.items():
            with monkeypatch.context() as limits:
                limits.setattr(campaign, limit, -(1 << 40))
                with pytest.raises(Violation, match=complaint):
                    Campaign(node, SEED).run(0.1)
        node.stop()


@pytest.mark.timeout(300)
def test_connections_that_stay_open_are_seen(tmp_path):
    print(f"KLAMM_SEED={SEED}")

    class Leaking(Campaign):
        """Keeps every connection of its own open beside the hostile ones."""

        def _throw(self, kind, frames):
            kept.append(Wire(node.port))
            super()._throw(kind, frames)

    kept = []
    with KlammProcess(tmp_path) as node:
        with pytest.raises(Violation, match="more sockets are open"):
            Leaking(node, SEED).run(120)
        node.stop()
    for wire in kept:
        wire.close()


@pytest.mark.timeout(LOGIN_SECONDS + 300)
def test_hostile_logins_and_tls_records(tmp_path):
    print(f"KLAMM_SEED={SEED}")
    with SecuredProcess(tmp_path) as node:
        outcome = LoginCampaign(node, SEED).run(LOGIN_SECONDS)
        print(outcome)
        assert set(outcome.by_kind) == set(ATTACKS)
        assert outcome.answers > 0
        node.stop()


def test_a_connection_that_stays_open_is_a_violation(monkeypatch):
    monkeypatch.setattr(logins, "PROBE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = logins.Peer(server.getsockname()[1])
        with peer.sock, pytest.raises(Violation, match="stays open"):
            LoginCampaign(SecuredProcess.__new__(SecuredProcess), SEED)._wait_for_end(peer)


@pytest.mark.parametrize("target", TARGETS, ids=[target.name for target in TARGETS])
def test_readers_refuse_with_their_own_error(target):
    print(f"KLAMM_SEED={SEED}")
    source = random.Random(SEED)
    assert any(target.try_one(target.make(source)) for _ in range(20)), "no sample is valid without harm"
    run_texts(SEED, cases=TEXT_CASES, targets=(target,))


def test_an_input_that_breaks_a_promise_is_kept_and_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(texts, "CORPUS", tmp_path)

    def read(data):
        if b"0" in data:
            raise KeyError("0")

    target = Target("numbers", read, (ValueError,), lambda source: b"%08d" % source.randrange(10**8))
    with pytest.raises(BrokenPromise, match="numbers: KeyError"):
        run_texts(SEED, cases=1000, targets=(target,))
    assert len(list((tmp_path / "numbers").iterdir())) == 1
    with pytest.raises(BrokenPromise):
        run_texts(SEED, cases=0, targets=(target,))


def test_an_input_that_takes_long_breaks_a_promise(monkeypatch):
    monkeypatch.setattr(texts, "CPU_SECONDS_MAX", 0.01)

    def read(_):
        begun = time.thread_time()
        while time.thread_time() < begun + 0.02:
            pass

    with pytest.raises(BrokenPromise, match="s of CPU"):
        Target("slow", read, (), lambda _: b"x").try_one(b"x")
