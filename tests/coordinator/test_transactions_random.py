"""Random lives of transactions keep every promise, and every planted bug is detected."""

from collections.abc import Iterable
from dataclasses import replace

import pytest

from klamm.coordinator.core.shard import Decision
from klamm.coordinator.groups.offsets import ShardOffsets
from klamm.coordinator.transactions import markers, rules, shard, state
from klamm.coordinator.transactions.markers import MarkerOutcome, MarkerTracker, PendingMarkers
from klamm.coordinator.transactions.state import TransactionMetadata
from klamm.model.errors import ErrorCode

from . import transactions_world
from .transactions_machine import run_life

LIVES = 60
SEARCH = 400
"""Lives within which a planted bug must show itself."""


@pytest.mark.parametrize("version", [0, 2])
@pytest.mark.parametrize("block", range(4))
def test_random_lives_keep_every_promise(version, block):
    committed = 0
    for seed in range(block * LIVES, (block + 1) * LIVES):
        print(f"seed {seed}, transaction version {version}")
        machine = run_life(seed, version)
        committed += sum(txn.outcome == "commit" for txn in machine.txns.values())
    assert committed > LIVES // 2, "the lives must be worth living"


def never_fence(monkeypatch):
    monkeypatch.setattr(rules, "check_owner", lambda metadata, producer: None)


def never_bump(monkeypatch):
    def prepare_end(self, *, committed, now_ms, client_version, next_producer_id=-1):
        honest = TransactionMetadata._honest_prepare_end(
            self, committed=committed, now_ms=now_ms, client_version=client_version, next_producer_id=next_producer_id
        )
        return replace(honest, producer_epoch=self.producer_epoch)

    monkeypatch.setattr(TransactionMetadata, "_honest_prepare_end", TransactionMetadata.prepare_end, raising=False)
    monkeypatch.setattr(TransactionMetadata, "prepare_end", prepare_end)


def reply_before_commit(monkeypatch):
    honest = transactions_world.World.carry_out

    def carry_out(self, decision):
        for reply_to, value in decision.replies:
            reply_to(value)
        honest(self, Decision(decision.records))

    monkeypatch.setattr(transactions_world.World, "carry_out", carry_out)


def forget_failed_markers(monkeypatch):
    monkeypatch.setattr(markers, "outcome_of", lambda error: MarkerOutcome.WRITTEN)


def complete_after_the_first_marker(monkeypatch):
    monkeypatch.setattr(
        MarkerTracker,
        "all_written",
        lambda self, owed: (left := self.find(owed.transactional_id)) is not None and len(left.partitions) <= 1,
    )


def do_not_resume(monkeypatch):
    monkeypatch.setattr(shard.TransactionShard, "on_loaded", lambda self, image, now: Decision())
    monkeypatch.setattr(shard, "PREPARED", frozenset())


def mix_up_the_ends(monkeypatch):
    honest = PendingMarkers.of.__func__

    def of(cls, metadata, coordinator_epoch):
        owed = honest(cls, metadata, coordinator_epoch)
        return replace(owed, committed=True) if coordinator_epoch > 0 else owed

    monkeypatch.setattr(PendingMarkers, "of", classmethod(of))


def ask_nobody(monkeypatch):
    monkeypatch.setattr(transactions_world.Partition, "has_open", lambda self, producer: True)


def begin_without_ending(monkeypatch):
    """A new producer takes over and leaves the open transaction as it is."""
    free: Iterable[state.TransactionState] = (*state.PREVIOUS_STATES[state.EMPTY], state.ONGOING)
    monkeypatch.setitem(state.PREVIOUS_STATES, state.EMPTY, frozenset(free))

    def fence(metadata, transaction_version, take_producer_id, now_ms):
        return metadata.increment_epoch(60_000, now_ms, expected_epoch=None)

    monkeypatch.setattr(rules, "fence", fence)


def commit_what_was_aborted(monkeypatch):
    """A repeated end is believed, whatever was decided before."""
    monkeypatch.setattr(rules, "_check_same_end", lambda metadata, committed: None)


def commit_offsets_of_aborted_transactions(monkeypatch):
    honest = ShardOffsets.replay_marker
    monkeypatch.setattr(
        ShardOffsets, "replay_marker", lambda self, producer_id, committed: honest(self, producer_id, True)
    )


def let_offsets_count_at_once(monkeypatch):
    honest = ShardOffsets.replay
    monkeypatch.setattr(
        ShardOffsets, "replay", lambda self, record, offset, producer_id: honest(self, record, offset, -1)
    )


def lose_the_marker_of_offsets(monkeypatch):
    """The coordinator of the groups does not hear of the markers in its partition."""
    write = transactions_world.Partition.write_marker
    monkeypatch.setattr(transactions_world.OffsetsPartition, "write_marker", write)


BUGS = [
    (never_fence, 2),
    (never_bump, 2),
    (reply_before_commit, 2),
    (forget_failed_markers, 0),
    (complete_after_the_first_marker, 2),
    (do_not_resume, 0),
    (mix_up_the_ends, 2),
    (ask_nobody, 0),
    (begin_without_ending, 0),
    (commit_what_was_aborted, 2),
    (commit_offsets_of_aborted_transactions, 2),
    (let_offsets_count_at_once, 0),
    (lose_the_marker_of_offsets, 2),
]


@pytest.mark.parametrize(("plant", "version"), BUGS, ids=[bug.__name__ for bug, _ in BUGS])
def test_a_planted_bug_is_caught(plant, version, monkeypatch):
    plant(monkeypatch)
    for seed in range(SEARCH):
        try:
            run_life(seed, version)
        except (AssertionError, KeyError) as error:
            print(f"{plant.__name__} was caught in seed {seed}: {error}")
            return
    pytest.fail(f"{plant.__name__} lived through {SEARCH} lives")


def test_every_error_has_an_outcome():
    assert markers.outcome_of(ErrorCode.NONE) is MarkerOutcome.WRITTEN
    assert markers.outcome_of(ErrorCode.NOT_ENOUGH_REPLICAS) is MarkerOutcome.RETRY
    assert markers.outcome_of(ErrorCode.TRANSACTION_COORDINATOR_FENCED) is MarkerOutcome.ABANDONED
