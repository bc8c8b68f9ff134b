"""JoinGroup and SyncGroup by templates and by the codec: the same bytes; waiting on the quick path: the same end."""

import random
import select

import pytest

from harness.inprocess import NodeThread
from harness.wire import Wire, unique
from klamm.coordinator.groups import kernels
from klamm.model.errors import ErrorCode
from klamm.protocol.codec import decode, encode
from klamm.protocol.header import RequestHeader, decode_request_header, encode_request_header
from klamm.protocol.messages.join_group import JoinGroupResponse
from klamm.protocol.messages.sync_group import SyncGroupRequest, SyncGroupRequestAssignment, SyncGroupResponse
from klamm.server.handlers.groups import rebalance_replies
from klamm.server.handlers.groups.rebalance_replies import encode_join_reply, encode_sync_reply
from klamm.server.handlers.groups.sync_group_quick import handle as quick_sync
from klamm.server.requests.replies import build_frame


@pytest.mark.parametrize("version", range(10))
def test_an_answer_to_join_group_is_that_of_the_codec(version):
    for member_id in ("m", "member-ä", "m" * 200):
        response = JoinGroupResponse(
            generation_id=7,
            protocol_type="consumer" if version >= 7 else None,
            protocol_name="range",
            leader="the leader",
            skip_assignment=version >= 9,
            member_id=member_id,
            members=[],
        )
        expected = build_frame(5, encode(response, version), flexible=version >= 6)
        assert encode_join_reply(5, version, response) == expected


def test_templates_of_long_names_are_not_kept():
    """Members choose the names of protocols, and the ids of leaders by their client ids: 32 KB of each."""
    rebalance_replies._join_template.cache_clear()
    rebalance_replies._sync_template.cache_clear()
    long = "p" * 30_000
    for join in (
        JoinGroupResponse(generation_id=7, protocol_name=long, leader="l", member_id="m", members=[]),
        JoinGroupResponse(generation_id=7, protocol_name="range", leader=long, member_id="m", members=[]),
    ):
        assert encode_join_reply(5, 5, join) == build_frame(5, encode(join, 5), flexible=False)
    sync = SyncGroupResponse(protocol_type="consumer", protocol_name=long, assignment=b"share")
    assert encode_sync_reply(5, 5, sync) == build_frame(5, encode(sync, 5), flexible=True)
    assert rebalance_replies._join_template.cache_info().currsize == 0
    assert rebalance_replies._sync_template.cache_info().currsize == 0


@pytest.mark.parametrize("version", range(6))
def test_an_answer_to_sync_group_is_that_of_the_codec(version):
    for share in (b"", b"share", b"s" * 5000):
        kind = ("consumer", "range") if version >= 5 else (None, None)
        response = SyncGroupResponse(protocol_type=kind[0], protocol_name=kind[1], assignment=share)
        assert encode_sync_reply(-5, version, response) == build_frame(
            -5, encode(response, version), flexible=version >= 4
        )


@pytest.mark.parametrize("version", range(6))
def test_a_sync_is_read_as_the_codec_reads_it_or_left_to_it(version):
    seed = random.randrange(2**32)
    print(f"seed {seed}")
    chance = random.Random(seed)
    for _ in range(500):
        request = SyncGroupRequest(
            group_id=chance.choice(["", "g", "grüppe"]),
            generation_id=chance.choice([-1, 0, 7]),
            member_id=chance.choice(["", "member"]),
            group_instance_id=chance.choice([None, "", "i"]) if version >= 3 else None,
            protocol_type=chance.choice([None, "consumer"]) if version >= 5 else None,
            protocol_name=chance.choice([None, "range"]) if version >= 5 else None,
            assignments=[SyncGroupRequestAssignment(member_id="m")] if chance.random() < 0.2 else [],
        )
        frame = bytearray(encode_request_header(RequestHeader(14, version, 3, "c")) + encode(request, version))
        if chance.random() < 0.6:
            frame[chance.randrange(8, len(frame))] = chance.choice([0, 1, 127, 128, 255])
        parts = kernels.read_sync(bytes(frame), version)
        if parts is not None:
            _, start = decode_request_header(frame)
            request, end = decode(SyncGroupRequest, version, frame, start)
            assert end == len(frame)
            assert not request.assignments
            assert parts == (
                request.group_id,
                request.generation_id,
                request.member_id,
                request.group_instance_id,
                request.protocol_type,
                request.protocol_name,
            )


@pytest.fixture(scope="module")
def node(tmp_path_factory):
    with NodeThread(tmp_path_factory.mktemp("node"), "group.initial.rebalance.delay.ms=0") as thread:
        yield thread


def gathered(links: list[Wire], ids: list[str], fields: dict) -> list:
    """Let all members join until one generation holds them; a member that was answered too early joins again."""
    answers: list = [None] * len(links)
    waiting = set()
    while True:
        for i in set(range(len(links))) - waiting:
            fields["protocols"] = [{"name": "range", "metadata": random.randbytes(4)}]
            links[i].send("join_group", 5, member_id=ids[i], **fields)
            waiting.add(i)
        while ready := select.select([links[i].sock for i in waiting], [], [], 0.3)[0]:
            for i in [i for i in waiting if links[i].sock in ready]:
                answers[i] = links[i].receive("join_group", 5)
                waiting.discard(i)
        if not waiting and len({answer.generation_id for answer in answers}) == 1:
            return answers


def rebalance(port: int, version: int, size: int, *, leader_last: bool) -> list[tuple[int, int]]:
    """A generation of `size` members, each on its own connection; the answers to SyncGroup by rank of arrival."""
    group = unique("g")
    links = [Wire(port) for _ in range(size)]
    try:
        fields = {
            "group_id": group,
            "session_timeout": 30_000,
            "rebalance_timeout": 30_000,
            "protocol_type": "consumer",
            "protocols": [{"name": "range", "metadata": b""}],
            "group_instance_id": None,
        }
        ids = []
        for link in links:
            while True:
                given = link.call("join_group", 5, member_id="", **fields)
                if given.error_code == ErrorCode.MEMBER_ID_REQUIRED:
                    break
                link.call("find_coordinator", 4, key_type=0, coordinator_keys=[group])
            ids.append(given.member_id)
        joined = gathered(links, ids, fields)
        leader, generation = joined[0].leader, joined[0].generation_id
        order = sorted(range(size), key=lambda i: (ids[i] == leader) == leader_last)
        for i in order:
            shares = [{"member_id": m, "assignment": m.encode()} for m in ids] if ids[i] == leader else []
            rest = {"protocol_type": "consumer", "protocol_name": "range"} if version >= 5 else {}
            rest |= {"group_instance_id": None} if version >= 3 else {}
            links[i].send(
                "sync_group", version, group_id=group, generation_id=generation, member_id=ids[i], assignments=shares,
                **rest,
            )  # fmt: skip
        answers = [links[i].receive("sync_group", version) for i in range(size)]
        assert [answer.assignment for answer in answers] == [m.encode() for m in ids]
        return [(answer.error_code, len(answer.assignment)) for answer in answers]
    finally:
        for link in links:
            link.close()


@pytest.mark.parametrize("leader_last", [True, False])
@pytest.mark.parametrize("version", [0, 3, 4, 5])
def test_every_member_gets_its_assignment_on_either_path(node, version, leader_last, monkeypatch):
    taken = []

    def counted(*args):
        taken.append(quick_sync(*args))
        return taken[-1]

    monkeypatch.setattr(node.node.router, "quick_paths", {14: counted})
    short = rebalance(node.port, version, 4, leader_last=leader_last)
    assert taken.count(True) >= 2, "all but the leader and the last one to come take the quick path"
    monkeypatch.setattr(node.node.router, "quick_paths", {})
    assert rebalance(node.port, version, 4, leader_last=leader_last) == short
