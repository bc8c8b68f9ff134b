"""What is made of samples: rates, lags, rows, what needs attention, whether a broker may restart."""

import asyncio
import dataclasses
from importlib.resources import files

import pytest

from klamm.client.admin.cluster_types import Node, QuorumDescription, QuorumReplica
from klamm.client.admin.group_types import GroupDescription, MemberDescription
from klamm.console.core.attention import BEHIND_MS, DISK_WARNING, Severity, list_attention
from klamm.console.core.cluster_signs import ClusterSigns
from klamm.console.core.group_rows import list_group_rows, list_lags
from klamm.console.core.offset_plans import ResetTarget, parse_reset, plan_reset
from klamm.console.core.partition_columns import PartitionSample
from klamm.console.core.restarts import check_restart
from klamm.console.core.roles import ADMIN_ROLE, VIEWER_ROLE, Action, ConsoleRole, MaskRule, Visitor, masked_paths
from klamm.console.core.samples import (
    BrokerSample,
    ClusterSample,
    GroupSample,
    LogDirSample,
    TopicSample,
    add_rates,
)
from klamm.console.core.topic_rows import choose_topic_rows, list_topic_rows
from klamm.console.settings import parse_settings
from klamm.console.sign_reader import STALLED_MS, SignReader
from klamm.model.errors import ConfigError
from klamm.model.ids import TopicPartition
from klamm.registry.client import RegistryError


def partition(index=0, leader=1, replicas=(1, 2), isr=(1, 2), start=0, end=100, size=1000):
    return PartitionSample(index, leader, replicas, isr, start, end, size)


def topic(name, *partitions, **fields):
    return TopicSample(name, fields.pop("internal", False), partitions or (partition(),), fields.pop("total", 2000))


def sample(*topics, groups=(), brokers=None, time_ms=10_000):
    made = tuple(BrokerSample(i, "host", 9092) for i in (1, 2)) if brokers is None else brokers
    return ClusterSample(
        time_ms, "id", 1, made, {entry.name: entry for entry in topics}, {group.name: group for group in groups}
    )


def group(name, committed, state="Stable"):
    offsets = None if committed is None else {TopicPartition(*place): offset for place, offset in committed.items()}
    return GroupSample(name, "classic", "consumer", state, 1, offsets)


# Rates


def test_a_rate_is_the_growth_since_the_last_sample():
    before = sample(topic("orders", partition(end=100)), time_ms=0)
    after = sample(topic("orders", partition(end=400), total=3000), time_ms=10_000)
    assert add_rates(after, before) == ({"orders": 30.0}, {"orders": 100.0})


def test_a_topic_that_was_made_again_has_no_rate():
    before = sample(topic("orders", partition(end=100)), time_ms=0)
    assert add_rates(sample(topic("orders", partition(end=5))), before) == ({}, {})
    assert add_rates(sample(topic("new")), before) == ({}, {})


def test_retention_is_no_negative_rate():
    before = sample(topic("orders", total=9000), time_ms=0)
    assert add_rates(sample(topic("orders", total=10)), before)[1] == {"orders": 0.0}


def test_a_broker_that_returns_brings_no_bytes_per_second():
    """Its replicas are in the sizes again, which nothing wrote."""
    folder = (LogDirSample("/data", 0, 1000, 500),)
    one = (BrokerSample(1, "host", 9092, log_dirs=folder), BrokerSample(2, "host", 9093, fenced=True))
    both = (one[0], BrokerSample(2, "host", 9093, log_dirs=folder))
    before = sample(topic("orders", total=1000), brokers=one, time_ms=0)
    after = sample(topic("orders", partition(end=200), total=9000), brokers=both)
    assert add_rates(after, before) == ({"orders": 10.0}, {})


def test_a_replica_that_was_added_brings_no_bytes_per_second():
    before = dataclasses.replace(topic("orders", total=1000), sized_replicas=2)
    after = dataclasses.replace(topic("orders", total=9000), sized_replicas=3)
    assert add_rates(sample(after), sample(before, time_ms=0)) == ({"orders": 0.0}, {})


# Rows


def test_a_topic_row_has_the_lag_of_its_slowest_group():
    groups = [group("a", {("orders", 0): 90}), group("b", {("orders", 0): 10, ("other", 0): 0}), group("c", None)]
    row = list_topic_rows(sample(topic("orders"), topic("other", partition(end=5000)), groups=groups))[0]
    assert (row.groups, row.lag) == (2, 90)


def test_internal_topics_are_left_out_unless_they_are_wanted():
    cluster = sample(topic("orders"), topic("__consumer_offsets", internal=True))
    rows = list_topic_rows(cluster)
    assert [row.name for row in choose_topic_rows(rows)] == ["orders"]
    assert len(choose_topic_rows(rows, internal=True)) == 2


def test_the_state_of_a_topic_is_that_of_its_worst_partition():
    cluster = sample(
        topic("good"), topic("behind", partition(), partition(1, isr=(1,))), topic("gone", partition(leader=-1, isr=()))
    )
    assert {row.name: row.state for row in list_topic_rows(cluster)} == {
        "good": "healthy",
        "behind": "under-replicated",
        "gone": "offline",
    }
    assert [row.name for row in choose_topic_rows(list_topic_rows(cluster), state="offline")] == ["gone"]


def test_the_trend_of_a_lag_is_in_records_per_second():
    before = sample(topic("orders", partition(end=100)), groups=[group("a", {("orders", 0): 50})], time_ms=0)
    after = sample(topic("orders", partition(end=300)), groups=[group("a", {("orders", 0): 50})], time_ms=10_000)
    row = list_group_rows(after, before)[0]
    assert (row.lag, row.lag_change) == (250, 20.0)


def test_a_commit_beyond_the_end_is_no_negative_lag():
    cluster = sample(topic("orders", partition(end=5)), groups=[group("a", {("orders", 0): 9, ("deleted", 0): 1})])
    assert cluster.lags == {"a": 0}


def test_lags_name_the_member_that_reads_the_partition():
    places = [TopicPartition("orders", i) for i in range(3)]
    member = MemberDescription("m-1", None, "client", "host", (places[0], places[2]))
    described = GroupDescription("g", "classic", "consumer", "Stable", "range", Node(1, "h", 1), (member,))
    (lag,) = list_lags(
        described, {places[0]: 5, places[1]: 10}, dict.fromkeys(places, 2), dict.fromkeys(places, 10), {places[0]: 3000}
    )
    assert [(row.lag, row.lag_ms, row.client) for row in lag.partitions] == [
        (5, 3000, "client"),
        (0, 0, ""),
        (8, None, "client"),  # nothing committed: all records are still to be read
    ]
    assert (lag.lag, lag.lag_ms) == (13, 3000)


# Attention


def titles(cluster, **options):
    return [(item.severity, item.title) for item in list_attention(cluster, **options)]


def test_a_healthy_cluster_needs_no_attention():
    quorum = QuorumDescription(1, 1, 500, (voter(1, 500), voter(2, 400)), (), {})
    signs = ClusterSigns(minimums={"orders": 2}, quorum=quorum)
    assert titles(sample(topic("orders")), signs=signs) == []


def test_findings_are_the_worst_first():
    cluster = sample(
        topic("behind", partition(isr=(1,))),
        topic("gone", partition(leader=-1, isr=())),
        topic("single", partition(replicas=(1,), isr=(1,))),
        topic("moved", partition(leader=2)),
    )
    assert titles(cluster) == [
        (Severity.CRITICAL, "1 partition without a leader"),
        (Severity.WARNING, "2 partitions under-replicated"),
        (Severity.NOTICE, "1 partition led by another than the preferred replica"),
        (Severity.NOTICE, "1 topic with one replica"),
    ]


@pytest.mark.parametrize(("usable", "severity"), [(10, None), (9, Severity.WARNING), (5, Severity.CRITICAL)])
def test_a_full_disk_is_reported(usable, severity):
    broker = BrokerSample(1, "h", 1, log_dirs=(LogDirSample("/data", 0, 100, usable),))
    severities = [item.severity for item in list_attention(sample(brokers=(broker,)))]
    assert severities == ([] if severity is None else [severity])


def test_fenced_brokers_failed_disks_idle_groups_and_stuck_transactions_are_reported():
    brokers = (
        BrokerSample(1, "h", 1, fenced=True),
        BrokerSample(2, "h", 1, log_dirs=(LogDirSample("/d", 56, -1, -1),)),
    )
    idle = group("idle", {("orders", 0): 0}, state="Empty")
    cluster = sample(topic("orders", partition(end=5000)), groups=[idle], brokers=brokers)
    listed = [title for _, title in titles(cluster, signs=ClusterSigns(stuck_transactions=2))]
    assert listed == [
        "Broker 1 is fenced",
        "Log dir failed: /d of broker 2",
        "2 transactions open for more than 15 minutes",
        "1 group without members and with unread records",
    ]


def late_group(name, age_ms, state="Stable"):
    return dataclasses.replace(group(name, {("orders", 0): 0}, state=state), oldest_unread_ms=1000 - age_ms)


def test_groups_with_members_are_behind_by_the_age_of_what_they_have_not_read():
    groups = [late_group("late", BEHIND_MS + 60_000), late_group("later", BEHIND_MS + 120_000)]
    others = [late_group("near", BEHIND_MS), late_group("idle", BEHIND_MS * 2, "Empty")]
    cluster = dataclasses.replace(sample(topic("orders"), groups=[*groups, *others]), time_ms=1000)
    (item,) = list_attention(cluster, ClusterSigns(growing_groups=frozenset({"late", "near"})))
    assert (item.severity, item.title) == (Severity.WARNING, "2 groups with members more than 5 min behind")
    assert item.detail == "The furthest behind: later, 7 min. 1 of them read slower than records are written."


def test_partitions_below_the_minimum_are_critical():
    single = topic("single", partition(replicas=(1,), isr=(1,)))
    cluster = sample(topic("orders", partition(isr=(1,)), partition()), single)
    signs = ClusterSigns(minimums={"orders": 2, "single": 2, "deleted": 2})
    assert titles(cluster, signs=signs)[0] == (Severity.CRITICAL, "1 partition below min.insync.replicas")
    allowed = [title for _, title in titles(cluster, signs=ClusterSigns(minimums={"orders": 1}))]
    assert "1 partition under-replicated" in allowed
    assert "1 partition below min.insync.replicas" not in allowed


def test_a_quorum_without_a_leader_and_voters_behind_are_reported():
    leaderless = QuorumDescription(-1, 1, 500, (voter(1, 500),), (), {})
    for signs in (ClusterSigns(quorum=leaderless), ClusterSigns(quorum_error="no answer")):
        assert titles(sample(), signs=signs) == [(Severity.CRITICAL, "The controller quorum has no leader")]
    behind = QuorumDescription(1, 1, 500, (voter(1, 500), voter(2, 10), voter(3, -1)), (), {})
    (item,) = list_attention(sample(), ClusterSigns(quorum=behind))
    assert item.title == "2 voters of the quorum behind"
    assert "2 by 490, 3 by 501" in item.detail


def test_moves_without_progress_and_a_throttle_that_is_left_are_reported():
    where = TopicPartition("orders", 0)
    signs = ClusterSigns(stalled_moves=(where, TopicPartition("deleted", 1)), left_throttle=1 << 20)
    items = list_attention(sample(topic("orders")), signs)
    assert [item.title for item in items] == ["1 move without progress", "A throttle is left"]
    assert "orders-0." in items[0].detail
    assert "1 MiB a second" in items[1].detail


def test_a_move_is_stalled_when_its_new_replicas_get_nothing_for_minutes():
    clock = [0]
    reader = SignReader(lambda: clock[0])
    still, moving = TopicPartition("orders", 0), TopicPartition("orders", 1)
    for clock[0] in range(0, STALLED_MS, 60_000):
        assert reader.find_stalled({still: 100, moving: clock[0]}) == ()
    clock[0] = STALLED_MS
    assert reader.find_stalled({still: 100, moving: 1}) == (still,)
    assert reader.find_stalled({moving: 1}) == ()
    # A move that begins again has another five minutes.
    assert reader.find_stalled({still: 100}) == ()


class FailingRegistry:
    """A registry whose requests fail with a status, None without an answer."""

    def __init__(self, status):
        self.registry = self
        self._status = status

    def call(self, *_):
        raise RegistryError("it failed", self._status)


@pytest.mark.parametrize(("status", "error"), [(None, "it failed"), (503, "it failed"), (403, "")])
def test_a_registry_that_refuses_has_answered(status, error):
    reader = SignReader(lambda: 0)
    asyncio.run(reader._ask_registry(FailingRegistry(status)))
    assert reader._registry_error == error


def test_thresholds_are_those_of_the_alerts():
    rules = files("klamm.telemetry.dashboards").joinpath("alerts.yml").read_text()
    assert f"group_max_lag_seconds) > {BEHIND_MS // 1000}\n" in rules
    assert f"klamm_log_dir_total_bytes < {1 - DISK_WARNING:.1g}\n" in rules


def voter(number, end):
    return QuorumReplica(number, b"", end, None, None)


def test_a_broker_whose_replicas_are_elsewhere_may_restart():
    quorum = QuorumDescription(1, 1, 500, tuple(voter(i, 500) for i in (1, 2, 3)), (), {})
    assert check_restart(sample(topic("orders")), 1, quorum).safe


def test_the_last_replica_in_sync_and_the_last_quorum_may_not_restart():
    quorum = QuorumDescription(1, 1, 500, (voter(1, 500), voter(2, 500), voter(3, 10)), (), {})
    check = check_restart(sample(topic("orders", partition(isr=(2,)))), 2, quorum)
    assert not check.safe
    assert len(check.reasons) == 2
    assert "such as orders-0" in check.reasons[0]
    assert "needs 2 voters, and 1 others" in check.reasons[1]


# Resets

PLACE = TopicPartition("orders", 0)


@pytest.mark.parametrize(
    ("text", "target"),
    [
        ("earliest", ResetTarget("earliest")),
        ("1200", ResetTarget("offset", 1200)),
        ("@1200", ResetTarget("offset", 1200)),
        ("-10", ResetTarget("shift", -10)),
        ("+5", ResetTarget("shift", 5)),
        ("2h ago", ResetTarget("time", 100 * 3_600_000 - 7_200_000)),
        ("2026-05-01T12:00:00Z", ResetTarget("time", 1_777_636_800_000)),
    ],
)
def test_positions_of_a_reset(text, target):
    assert parse_reset(text, 100 * 3_600_000) == target


def test_a_position_that_is_none_shows_how_to_write_one():
    with pytest.raises(ValueError, match="write earliest, latest"):
        parse_reset("yesterday-ish", 0)


@pytest.mark.parametrize(
    ("target", "after", "records", "clamped"),
    [
        (ResetTarget("earliest"), 10, 40, False),
        (ResetTarget("latest"), 100, -50, False),
        (ResetTarget("offset", 60), 60, -10, False),
        (ResetTarget("offset", 3), 10, 40, True),
        (ResetTarget("offset", 9999), 100, -50, True),
        (ResetTarget("shift", -20), 30, 20, False),
        (ResetTarget("time", 5), 77, -27, False),
    ],
)
def test_a_reset_stays_within_the_log(target, after, records, clamped):
    (move,) = plan_reset(target, [PLACE], {PLACE: 50}, {PLACE: 10}, {PLACE: 100}, {PLACE: 77})
    assert (move.before, move.after, move.records, move.clamped) == (50, after, records, clamped)


def test_a_time_after_the_last_record_is_the_end():
    (move,) = plan_reset(ResetTarget("time", 5), [PLACE], {}, {PLACE: 10}, {PLACE: 100}, {PLACE: -1})
    assert (move.before, move.after, move.records) == (None, 100, -90)


def test_a_partition_without_a_leader_stops_the_whole_reset():
    other = TopicPartition("orders", 1)
    with pytest.raises(ValueError, match="orders-1 has no leader"):
        plan_reset(ResetTarget("earliest"), [PLACE, other], {}, {PLACE: 0}, {PLACE: 1}, {})


# Roles


def test_roles_are_by_cluster_topic_and_action():
    role = ConsoleRole("support", frozenset({Action.VIEW, Action.READ}), ("prod-*",), ("orders*",))
    visitor = Visitor("v", (role,))
    assert visitor.may(Action.READ, "prod-eu", "orders.dlq")
    assert not visitor.may(Action.READ, "prod-eu", "payments")
    assert not visitor.may(Action.READ, "staging", "orders")
    assert not visitor.may(Action.PRODUCE, "prod-eu", "orders")
    assert visitor.visible("prod-eu", ["orders", "payments"]) == ["orders"]
    assert visitor.visible("staging", ["orders"]) == []


def test_nothing_is_changed_in_read_only_mode():
    visitor = Visitor("admin", (ADMIN_ROLE,), read_only=True)
    assert [action for action in Action if visitor.may(action, "any")] == [Action.VIEW, Action.READ, Action.AUDIT]


def test_masks_spare_exempt_roles():
    rule = MaskRule(("orders*",), (("card", "number"),), frozenset({"admin"}))
    assert masked_paths([rule], "orders", Visitor("v", (VIEWER_ROLE,))) == [("card", "number")]
    assert masked_paths([rule], "orders", Visitor("a", (ADMIN_ROLE,))) == []
    assert masked_paths([rule], "other", Visitor("v", (VIEWER_ROLE,))) == []


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[user.x]", "has no table user"),
        ("[users.x]\npassword = 'plain'", "no argon2 hash"),
        ("[users.x]\npassword = '$argon2id$x'\nroles = ['chief']", "no role chief"),
        ("[roles.x]\nactions = ['fly']", "actions are view"),
        ("[proxy]\nheader = 'X-User'", "in `from` the addresses"),
        ("[[masks]]\ntopics = ['a']", "at least one field"),
        ("users = 3", "wrong kind"),
        ("[", "is no TOML"),
    ],
)
def test_mistakes_in_the_file_are_named(text, complaint):
    with pytest.raises(ConfigError, match=complaint):
        parse_settings(text)


def test_a_sample_is_not_changed_by_what_is_made_of_it():
    cluster = sample(topic("orders"), groups=[group("a", {("orders", 0): 1})])
    copied = dataclasses.replace(cluster)
    list_topic_rows(cluster)
    list_group_rows(cluster)
    assert copied == cluster
