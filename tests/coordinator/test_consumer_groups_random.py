"""Random lives of consumer groups; planted bugs must be detected."""

import os
from dataclasses import replace

import pytest

from coordinator.consumer_groups_machine import Machine
from coordinator.consumer_groups_world import CONFIG, consumer_config
from klamm.coordinator.groups.consumer import classic_members, heartbeat, leaving, member_update, migration, reconcile
from klamm.coordinator.groups.consumer.config import MigrationPolicy
from klamm.coordinator.groups.consumer.group import ConsumerGroup
from klamm.coordinator.groups.consumer.topology import Topology

FIRST = int(os.environ.get("KLAMM_SEED", "1"))
SEEDS = int(os.environ.get("KLAMM_SEEDS", "60"))

CONFIGS = (
    CONFIG,
    consumer_config(assignment_interval_ms=1000),
    consumer_config(migration_policy=MigrationPolicy.UPGRADE),
)


def live(seed: int, steps: int = 150) -> None:
    machine = Machine(seed, CONFIGS[seed % len(CONFIGS)])
    try:
        machine.live(steps)
    except Exception:
        print(f"KLAMM_SEED={seed} KLAMM_SEEDS=1; after {len(machine.steps)} steps: {machine.steps[-12:]}")
        raise


@pytest.mark.parametrize("seed", range(FIRST, FIRST + SEEDS))
def test_whatever_happens_nothing_is_read_twice_and_all_comes_to_rest(seed):
    live(seed)


# Planted bugs


def take_what_others_hold(patch):
    real = reconcile._compare
    patch.setattr(reconcile, "_compare", lambda m, e, te, t, free, reads: real(m, e, te, t, lambda *_: True, reads))


def believe_that_it_was_given_back(patch):
    patch.setattr(reconcile, "_still_owns", lambda *_: False)


def forget_who_holds_what_on_release(patch):
    patch.setattr(ConsumerGroup, "_release", lambda *_: None)


def accept_any_epoch(patch):
    patch.setattr(heartbeat, "_check_epoch", lambda *_: None)


def ignore_new_partitions(patch):
    patch.setattr(Topology, "metadata_hash", lambda *_: 0)


def leave_without_a_new_epoch(patch):
    real = leaving.epoch_record
    patch.setattr(leaving, "epoch_record", lambda group_id, epoch, hash_: real(group_id, epoch - 1, hash_))


def keep_the_target_of_those_who_left(patch):
    real = leaving.member_tombstones
    patch.setattr(leaving, "member_tombstones", lambda *who: [r for i, r in enumerate(real(*who)) if i != 1])


def forget_what_classic_members_read(patch):
    patch.setattr(migration, "read_assignment", lambda *_: {})


def assume_classic_members_read_nothing(patch):
    real = migration.may_downgrade
    patch.setattr(leaving, "may_downgrade", lambda builder, group, *rest: real(builder, group, *rest) and False)
    patch.setattr(classic_members, "heartbeat", lambda builder, group, request: classic_members.HeartbeatResponse())


def assign_for_the_members_before_the_change(patch):
    real = member_update.compute_target
    patch.setattr(
        member_update,
        "compute_target",
        lambda builder, members, known, topics_of: real(
            builder, dict(list(members.items())[:-1]) or members, known, topics_of
        ),
    )


def commit_only_at_the_newest_epoch(patch):
    real = ConsumerGroup.check_offset_commit

    def strict(group, *args, **kwargs):
        check = real(group, *args, **kwargs)
        return None if check is None else (lambda *_: heartbeat.ErrorCode.STALE_MEMBER_EPOCH)

    patch.setattr(ConsumerGroup, "check_offset_commit", strict)


def drop_a_pattern_others_use(patch):
    real = leaving.regex_record
    patch.setattr(leaving, "regex_record", real)
    patch.setattr(ConsumerGroup, "topics_of", lambda group, member: member.subscribed_topic_names)


PLANTED = [
    take_what_others_hold,
    believe_that_it_was_given_back,
    forget_who_holds_what_on_release,
    accept_any_epoch,
    ignore_new_partitions,
    leave_without_a_new_epoch,
    keep_the_target_of_those_who_left,
    forget_what_classic_members_read,
    assume_classic_members_read_nothing,
    assign_for_the_members_before_the_change,
    commit_only_at_the_newest_epoch,
    drop_a_pattern_others_use,
]


@pytest.mark.parametrize("bug", PLANTED, ids=lambda bug: bug.__name__)
def test_a_planted_bug_is_found(bug, monkeypatch):
    bug(monkeypatch)
    for seed in range(1, 40):
        try:
            Machine(seed, replace(CONFIGS[seed % len(CONFIGS)])).live()
        except Exception:  # noqa: BLE001 - any alarm will do
            return
    pytest.fail("the planted bug was not detected in forty lives")
