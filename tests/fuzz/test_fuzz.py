"""A minute of hostile requests of every API and version on either listener, logins and TLS records, and texts too: a
node answers or closes that one connection, and a reader refuses with its own error.

The seed is printed; KLAMM_SEED replays it, KLAMM_FUZZ_SECONDS makes it longer, and `make fuzz` runs it by hand.
"""

import os
import random
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import nullcontext

import pytest

from fuzz import campaign, logins, rights, target
from fuzz.batches import harm_batch, make_batch
from fuzz.campaign import Campaign, ControllerCampaign, NodeWithController, Violation
from fuzz.logins import ATTACKS, LoginCampaign, SecuredProcess
from fuzz.requests import ends_the_node, enveloped, has_no_answer, produce_frame
from fuzz.rights import RightsCampaign, RightsProcess
from fuzz.target import BrokenPromise, Target, kept_inputs, split_parts
from fuzz.texts import TARGETS, run_texts
from harness import KlammProcess, Wire
from harness.wire import produce_fields, request_bytes
from klamm.model.errors import CorruptBatch
from klamm.records.batch import BatchView

SEED = int(os.environ.get("KLAMM_SEED", random.SystemRandom().randrange(2**32)))
SECONDS = float(os.environ.get("KLAMM_FUZZ_SECONDS", "15"))
"""Of each of the four campaigns, so that they can run beside each other."""
TEXT_CASES = 60
BATCH_CASES = 400


@pytest.mark.timeout(SECONDS + 300)
def test_hostile_requests_of_every_api(tmp_path):
    print(f"KLAMM_SEED={SEED}")
    with KlammProcess(tmp_path) as node:
        outcome = Campaign(node, SEED).run(SECONDS)
        print(outcome)
        assert outcome.frames > 0
        node.stop()


@pytest.mark.timeout(SECONDS + 300)
def test_hostile_requests_to_the_controller(tmp_path):
    print(f"KLAMM_SEED={SEED}")
    with NodeWithController(tmp_path) as node:
        outcome = ControllerCampaign(node, SEED).run(SECONDS)
        print(outcome)
        assert set(outcome.by_kind) >= {"changed", "made up", "enveloped", "kept"}
        node.stop()


@pytest.mark.timeout(SECONDS + 300)
def test_hostile_requests_of_a_client_without_rights(tmp_path):
    print(f"KLAMM_SEED={SEED}")
    with RightsProcess(tmp_path) as node:
        outcome = RightsCampaign(node, SEED).run(SECONDS)
        print(outcome)
        assert set(outcome.by_kind) >= {"changed", "made up", "long names"}
        node.stop()


@pytest.mark.timeout(300)
def test_a_denial_that_does_not_reach_the_audit_topic_is_a_violation(tmp_path, monkeypatch):
    monkeypatch.setattr(target, "CORPUS", tmp_path / "corpus")
    monkeypatch.setattr(rights, "AUDIT_S", 1.0)
    with RightsProcess(tmp_path / "node") as node:
        with pytest.raises(Violation, match="does not reach the audit topic"):
            RightsCampaign(node, SEED, audit_topic="another").run(0)
        node.stop()


@pytest.mark.parametrize("answered", [0, 1, 3])
def test_a_request_without_an_answer_is_a_violation(tmp_path, monkeypatch, answered):
    """Of three requests and the sentinel, only some of the requests are answered."""
    monkeypatch.setattr(target, "CORPUS", tmp_path / "corpus")
    monkeypatch.setattr(campaign, "ANSWERED_SHARE", 1.0)
    frames = [request_bytes("list_groups", 4, number, "fuzz") for number in range(3)]
    frames.append(request_bytes("produce", 9, 9, "fuzz", **produce_fields("t", None, acks=0)))
    with socket.create_server(("127.0.0.1", 0)) as server, ThreadPoolExecutor(1) as executor:
        replies = [frame[4:8] for frame in frames[:answered]] + [campaign.SENTINEL[4:8]]
        executor.submit(answer_and_close, server, replies)
        thrower = Campaign(KlammProcess(tmp_path), SEED)
        thrower._node.port = server.getsockname()[1]
        with nullcontext() if answered == 3 else pytest.raises(Violation, match="a request got lost"):
            thrower._throw("made up", frames)
    assert thrower.outcome.checked == (3 if answered == 3 else 0)


def answer_and_close(server, replies):
    connection, _ = server.accept()
    with connection:
        connection.sendall(b"".join(struct.pack(">i", len(reply)) + reply for reply in replies))
        while connection.recv(65536):
            pass


def test_requests_without_an_answer_are_recognised():
    assert has_no_answer(request_bytes("produce", 9, 1, "fuzz", **produce_fields("t", b"", acks=0)))
    assert not has_no_answer(produce_frame("t", b""))
    assert not has_no_answer(request_bytes("list_groups", 4, 1, "fuzz"))
    assert not has_no_answer(b"\0\0\0\x09\0\0")


def test_requests_that_may_end_a_node_are_recognised():
    """A campaign leaves them out: obeying them is no fault."""
    votes = {"topics": [{"topic_name": "__cluster_metadata", "partitions": [{"replica_epoch": 7}]}]}
    unregister = request_bytes("unregister_broker", 0, 1, "fuzz", broker_id=1)
    assert ends_the_node(unregister)
    assert not ends_the_node(request_bytes("unregister_broker", 0, 1, "fuzz", broker_id=2))
    assert ends_the_node(request_bytes("vote", 0, 1, "fuzz", cluster_id=None, **votes))
    assert not ends_the_node(request_bytes("vote", 0, 1, "fuzz", cluster_id="another", **votes))
    source = random.Random(3)
    assert any(ends_the_node(enveloped(source, unregister)) for _ in range(20))


@pytest.mark.timeout(300)
def test_what_a_node_takes_of_the_machine_is_judged(tmp_path, monkeypatch):
    """A campaign that never complains proves nothing: with a limit below what is taken it must."""
    print(f"KLAMM_SEED={SEED}")
    monkeypatch.setattr(target, "CORPUS", tmp_path / "corpus")  # its frames have broken nothing
    complaints = {
        "MEMORY_BYTES_MAX": "memory has grown",
        "DESCRIPTORS_MAX": "more descriptors",
        "SOCKETS_MAX": "more sockets",
    }
    with KlammProcess(tmp_path / "node") as node:
        for limit, complaint in complaints.items():
            with monkeypatch.context() as limits:
                limits.setattr(campaign, limit, -(1 << 40))
                with pytest.raises(Violation, match=complaint):
                    Campaign(node, SEED).run(0.1)
        node.stop()


@pytest.mark.timeout(300)
def test_connections_that_stay_open_are_seen(tmp_path, monkeypatch):
    print(f"KLAMM_SEED={SEED}")
    monkeypatch.setattr(target, "CORPUS", tmp_path / "corpus")

    class Leaking(Campaign):
        """Keeps every connection of its own open beside the hostile ones."""

        def _throw(self, kind, frames):
            kept.append(Wire(node.port))
            super()._throw(kind, frames)

    kept = []
    with KlammProcess(tmp_path / "node") as node:
        with pytest.raises(Violation, match="more sockets are open"):
            Leaking(node, SEED).run(120)
        node.stop()
    for wire in kept:
        wire.close()


@pytest.mark.timeout(SECONDS + 300)
def test_hostile_logins_and_tls_records(tmp_path):
    print(f"KLAMM_SEED={SEED}")
    with SecuredProcess(tmp_path) as node:
        outcome = LoginCampaign(node, SEED).run(SECONDS)
        print(outcome)
        assert set(outcome.by_kind) == {*ATTACKS, "kept"}
        assert outcome.answers > 0
        node.stop()


def test_a_connection_that_stays_open_is_a_violation(monkeypatch):
    monkeypatch.setattr(logins, "PROBE_S", 0.1)
    with socket.create_server(("127.0.0.1", 0)) as server:
        peer = logins.Peer(server.getsockname()[1])
        with peer.sock, pytest.raises(Violation, match="stays open"):
            LoginCampaign(SecuredProcess.__new__(SecuredProcess), SEED)._wait_for_end(peer)


@pytest.mark.parametrize("reader", TARGETS, ids=[reader.name for reader in TARGETS])
def test_readers_refuse_with_their_own_error(reader):
    print(f"KLAMM_SEED={SEED}")
    source = random.Random(SEED)
    assert any(reader.try_one(reader.make(source)) for _ in range(40)), "no sample is valid without harm"
    run_texts(SEED, cases=TEXT_CASES, targets=(reader,))


def test_an_input_that_breaks_a_promise_is_kept_and_read_again(tmp_path, monkeypatch):
    monkeypatch.setattr(target, "CORPUS", tmp_path)

    def read(data):
        if b"0" in data:
            raise KeyError("0")

    numbers = Target("numbers", read, (ValueError,), lambda source: b"%08d" % source.randrange(10**8))
    with pytest.raises(BrokenPromise, match="numbers: KeyError"):
        run_texts(SEED, cases=1000, targets=(numbers,))
    assert len(list((tmp_path / "numbers").iterdir())) == 1
    with pytest.raises(BrokenPromise):
        run_texts(SEED, cases=0, targets=(numbers,))


@pytest.mark.timeout(300)
def test_frames_that_break_something_are_kept_and_thrown_again(tmp_path, monkeypatch):
    """The first campaign takes a word of the log for a violation; the second one begins with its last frames."""
    print(f"KLAMM_SEED={SEED}")
    monkeypatch.setattr(target, "CORPUS", tmp_path / "corpus")
    with KlammProcess(tmp_path / "node") as node:
        with monkeypatch.context() as complaints:
            complaints.setattr(campaign, "LOG_COMPLAINTS", ("request refused",))
            with pytest.raises(Violation, match="kept as"):
                Campaign(node, SEED).run(60)
        [kept] = kept_inputs("broker frames")
        assert 0 < len(split_parts(kept)) <= campaign.KEPT_FRAMES
        outcome = Campaign(node, SEED).run(0)
        assert outcome.by_kind["kept"] == len(split_parts(kept))
        node.stop()


def test_most_harmed_batches_reach_the_decoder():
    """A checksum that does not agree would hide every other fault; kinds and codecs are all there."""
    print(f"KLAMM_SEED={SEED}")
    source = random.Random(SEED)
    agreeing, codecs, controls, transactions = 0, set(), 0, 0
    for _ in range(BATCH_CASES):
        whole = BatchView(make_batch(source))
        codecs.add(whole.codec)
        controls += whole.is_control
        transactions += whole.is_transactional
        try:
            BatchView(harm_batch(source, bytes(whole.raw))).check_crc()
            agreeing += 1
        except CorruptBatch:
            pass
    assert agreeing > BATCH_CASES * 0.7
    assert codecs == {0, 1, 2, 3, 4}
    assert min(controls, transactions) > BATCH_CASES * 0.1


def test_an_input_that_takes_long_breaks_a_promise(monkeypatch):
    monkeypatch.setattr(target, "CPU_SECONDS_MAX", 0.01)

    def read(_):
        begun = time.thread_time()
        while time.thread_time() < begun + 0.02:
            pass

    with pytest.raises(BrokenPromise, match="s of CPU"):
        Target("slow", read, (), lambda _: b"x").try_one(b"x")
