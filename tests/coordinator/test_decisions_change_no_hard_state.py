"""Deciding changes no hard state: whatever a request brings, only replaying its records changes what they keep."""

import random
from collections.abc import Callable
from dataclasses import replace
from functools import wraps
from typing import Any

import pytest

from klamm.coordinator.core.shard import Decision
from klamm.coordinator.groups.consumer.group import ConsumerGroup
from klamm.coordinator.groups.group import Caller
from klamm.coordinator.groups.shard import GroupShard
from klamm.coordinator.transactions.shard import TransactionShard
from klamm.model.errors import ErrorCode, KlammError
from klamm.protocol.messages.join_group import JoinGroupRequest, JoinGroupRequestProtocol

from .consumer_groups_machine import Machine as ConsumerGroupsMachine
from .consumer_groups_world import CONFIG, Consumer, ConsumerWorld
from .groups_world import Answer, World
from .test_consumer_groups_random import CONFIGS
from .test_groups_random import play
from .test_transactions_random import run_life

SEEDS = 6

CONSUMER_GROUP_SOFT_STATE = {"checked_image", "revoking", "rejoining"}

CHANGE_NO_GROUP = {
    "commit_offsets",
    "commit_transactional_offsets",
    "fetch_offsets",
    "delete_offsets",
    "describe",
    "describe_consumer_groups",
    "list_groups",
    "delete_groups",
}
"""Requests that leave even soft state alone."""

CHANGE_SOFT_STATE = {"join", "sync", "heartbeat", "leave", "consumer_heartbeat", "on_timer", "on_loaded", "on_metadata"}


def hard_state(shard: GroupShard) -> dict[str, str]:
    """Offsets, consumer groups and which groups exist, written out, without what is lost with the shard anyway."""
    state = {name: repr(value) for name, value in vars(shard.offsets).items()}
    state["groups"] = repr(list(shard.groups))
    for group_id, group in shard.groups.items():
        if isinstance(group, ConsumerGroup):
            kept = {name: value for name, value in vars(group).items() if name not in CONSUMER_GROUP_SOFT_STATE}
            state[f"group {group_id}"] = repr(kept)
    return state


def whole_state(shard: GroupShard) -> dict[str, str]:
    """Everything but the image, which is compared by identity."""
    state = hard_state(shard)
    for group_id, group in shard.groups.items():
        values = vars(group) | {"checked_image": id(getattr(group, "checked_image", None))}
        state[f"all of {group_id}"] = repr(values)
    return state


def compare(method: Callable[..., Any], snapshot: Callable[[Any], Any], calls: list[str]) -> Callable[..., Any]:
    """The method, failing when a call that decides has changed what `snapshot` shows."""

    @wraps(method)
    def compared(self: Any, *args: Any, **kwargs: Any) -> Any:
        calls.append(method.__name__)
        before, before_all = snapshot(self), whole_state(self)
        try:
            return method(self, *args, **kwargs)
        except KlammError:
            assert whole_state(self) == before_all, f"{method.__name__} was refused and changed the state"
            raise
        finally:
            assert snapshot(self) == before, f"{method.__name__} changed hard state"

    return compared


@pytest.fixture
def calls(monkeypatch):
    """Every request of a group shard is compared; the names of those that were made."""
    made: list[str] = []
    for name in CHANGE_NO_GROUP:
        monkeypatch.setattr(GroupShard, name, compare(getattr(GroupShard, name), whole_state, made))
    for name in CHANGE_SOFT_STATE:
        monkeypatch.setattr(GroupShard, name, compare(getattr(GroupShard, name), hard_state, made))
    return made


def test_requests_of_classic_groups(calls):
    for seed in range(SEEDS):
        play(seed, steps=60)
    world = World()
    first, _ = world.stable_group(2)
    world.heartbeat(first, world.group().generation_id)
    world.leave(first)
    assert {"join", "sync", "leave", "heartbeat", "commit_offsets", "on_timer"} <= set(calls)


def test_a_join_that_creates_a_group_waits_before_its_record_is_replayed():
    world = World()
    request = JoinGroupRequest(
        group_id="g",
        session_timeout_ms=10_000,
        rebalance_timeout_ms=10_000,
        protocol_type="consumer",
        protocols=[JoinGroupRequestProtocol(name="range", metadata=b"")],
    )
    answer = Answer()
    decision = world.shard.join(request, Caller("c", "/127.0.0.1", 3), world.now, answer)
    assert world.shard.groups == {}
    assert list(world.shard.waiting()) == [answer]
    world.run(decision)
    assert list(world.shard.groups) == ["g"]
    assert list(world.shard.waiting()) == [answer]


def test_requests_of_consumer_groups(calls):
    for seed in range(1, SEEDS):
        ConsumerGroupsMachine(seed, replace(CONFIGS[seed % len(CONFIGS)])).live()
    assert {"consumer_heartbeat", "join", "sync", "heartbeat", "commit_offsets", "on_timer"} <= set(calls)


def test_requests_of_administrators(calls):
    world = World()
    world.stable_group(2)
    world.commit(5, group_id="simple")
    world.commit_in_transaction(7, 1, group_id="simple")
    world.shard.describe(["g", "simple", "none"], 6, lambda _: None)
    world.shard.list_groups((), (), lambda _: None)
    world.shard.delete_groups(["g", "simple", "none"], lambda _: None)
    assert set(calls) >= {"describe", "list_groups", "delete_groups", "commit_transactional_offsets"}


def test_a_heartbeat_that_is_refused_for_its_size_changes_nothing(calls):
    world = ConsumerWorld(CONFIG, orders=4)
    consumer = Consumer(world, "orders").join()
    world.create("payments", 4)
    world.shard.set_config(replace(CONFIG, record_bytes_max=10))
    before = whole_state(world.shard)
    assert consumer.subscribe("orders", "payments")
    assert whole_state(world.shard) == before
    assert "consumer_heartbeat" in calls


def test_a_join_that_is_refused_changes_nothing():
    world = World()
    member_id, _ = world.stable_group(2, instance_id=None)
    before = whole_state(world.shard)
    generation = world.group().generation_id
    assert world.join("unknown").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.join(member_id, instance_id="unknown").error is ErrorCode.UNKNOWN_MEMBER_ID
    assert world.join(protocol_type="connect").error is ErrorCode.INCONSISTENT_GROUP_PROTOCOL
    assert world.join(session_ms=1).error is ErrorCode.INVALID_SESSION_TIMEOUT
    assert world.sync(member_id, generation + 1).error is ErrorCode.ILLEGAL_GENERATION
    assert world.leave("unknown") == [ErrorCode.UNKNOWN_MEMBER_ID]
    assert whole_state(world.shard) == before


TRANSACTION_REQUESTS = {
    "init_producer_id",
    "add_partitions",
    "verify_partitions",
    "end_transaction",
    "complete",
    "on_timer",
    "on_loaded",
    "on_metadata",
}


def compare_transactions(method: Callable[..., Any], calls: list[str]) -> Callable[..., Any]:
    """The method, failing when a call has changed a transaction, or without a record the cache of decided states."""

    @wraps(method)
    def compared(self: TransactionShard, *args: Any, **kwargs: Any) -> Decision:
        calls.append(method.__name__)
        transactions, last_decided = dict(self._transactions), dict(self._last_decided)
        decision = method(self, *args, **kwargs)
        assert self._transactions == transactions, f"{method.__name__} changed a transaction"
        if not decision.records:
            assert self._last_decided == last_decided, f"{method.__name__} decided nothing and changed the cache"
            if any(isinstance(response, KlammError) for _, response in decision.replies):
                calls.append("refused")
        return decision

    return compared


@pytest.mark.parametrize("version", [0, 2])
def test_requests_of_transactions(version, monkeypatch):
    calls: list[str] = []
    for name in TRANSACTION_REQUESTS:
        monkeypatch.setattr(TransactionShard, name, compare_transactions(getattr(TransactionShard, name), calls))
    for seed in random.Random(version).sample(range(1000), SEEDS):
        run_life(seed, version)
    assert {"init_producer_id", "add_partitions", "end_transaction", "complete", "refused"} <= set(calls)
