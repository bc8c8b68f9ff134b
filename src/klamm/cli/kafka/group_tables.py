"""The tables of kafka-consumer-groups, column for column."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from klamm.cli.queries.groups import CommittedOffsets
    from klamm.client.admin.group_types import GroupDescription, MemberDescription
    from klamm.client.blocking_cluster import BlockingCluster


def print_state_notice(group: GroupDescription) -> None:
    """Print Kafka's notice about a group without members or in a rebalance, on standard error."""
    notices = {
        "Empty": f"Consumer group '{group.group_id}' has no active members.",
        "Dead": f"Consumer group '{group.group_id}' does not exist.",
        "PreparingRebalance": f"Warning: Consumer group '{group.group_id}' is rebalancing.",
        "CompletingRebalance": f"Warning: Consumer group '{group.group_id}' is rebalancing.",
        "Assigning": f"Warning: Consumer group '{group.group_id}' is rebalancing.",
        "Reconciling": f"Warning: Consumer group '{group.group_id}' is rebalancing.",
    }
    if group.state in notices:
        print(f"\n{notices[group.state]}", file=sys.stderr)


def _width(title: int, values: Sequence[str]) -> int:
    return max([title, *map(len, values)])


def offsets(cluster: BlockingCluster, group: GroupDescription, committed: CommittedOffsets, *, verbose: bool) -> str:
    """One line per partition: where the group is, where the end is, who reads it."""
    from klamm.cli.queries.offsets import LATEST, list_offsets

    owners = {place: member for member in group.members for place in member.assignment}
    places = sorted({*committed, *owners})
    ends = list_offsets(cluster, places, LATEST)
    lines: list[list[str]] = []
    for place in places:
        position = committed.get(place)
        offset = None if position is None else position.offset
        epoch = -1 if position is None else position.leader_epoch
        owner = owners.get(place)
        end = ends.get(place)
        lag = "-" if offset is None or end is None else str(end - offset)
        row = [group.group_id, place[0], str(place[1])]
        if verbose:
            row.append("-" if epoch < 0 else str(epoch))
        row += ["-" if offset is None else str(offset), "-" if end is None else str(end), lag]
        row += [owner.member_id, _host(owner), owner.client_id] if owner else ["-", "-", "-"]
        lines.append(row)
    for member in group.members:
        # Members without partitions come last, with dashes.
        if not member.assignment:
            dashes = ["-"] * (6 if verbose else 5)
            lines.append([group.group_id, dashes[0], *dashes[1:], member.member_id, _host(member), member.client_id])
    heads = [
        "GROUP",
        "TOPIC",
        "PARTITION",
        "CURRENT-OFFSET",
        "LOG-END-OFFSET",
        "LAG",
        "CONSUMER-ID",
        "HOST",
        "CLIENT-ID",
    ]
    widths = [15, 15, 10, 15, 15, 15, 15, 15, 0]
    if verbose:
        heads.insert(3, "LEADER-EPOCH")
        widths.insert(3, 15)
    # Group, topic, consumer id and host grow with their values; the other widths are fixed in the JVM tool.
    for column in (0, 1, len(heads) - 3):
        widths[column] = _width(15, [line[column] for line in lines])
    host = len(heads) - 2
    widths[host] = _width(15, [line[host] for line in lines])
    return "\n" + "\n".join(_line(line, widths) for line in (heads, *lines))


def _host(member: MemberDescription) -> str:
    return f"/{member.host}"  # as Java prints an InetAddress


def _line(cells: Sequence[str], widths: Sequence[int]) -> str:
    return " ".join(f"{cell:<{width}}" for cell, width in zip(cells, widths, strict=True))


def members(group: GroupDescription, *, verbose: bool) -> str:
    """One line per member."""
    heads = ["GROUP", "CONSUMER-ID"]
    static = any(member.instance_id for member in group.members)
    if static:
        heads.append("GROUP-INSTANCE-ID")
    heads += ["HOST", "CLIENT-ID", "#PARTITIONS"]
    if verbose:
        heads += ["CURRENT-EPOCH", "CURRENT-ASSIGNMENT", "TARGET-EPOCH", "TARGET-ASSIGNMENT"]
        if any(member.upgraded is not None for member in group.members):
            heads.append("UPGRADED")
    lines = [_member(group, member, heads) for member in group.members]
    floors = {"GROUP-INSTANCE-ID": 17, "CURRENT-ASSIGNMENT": 20, "TARGET-ASSIGNMENT": 19}
    widths = [_width(floors.get(head, 15), [line[i] for line in lines]) for i, head in enumerate(heads)]
    # The JVM tool ends these lines with a space.
    return "\n" + "\n".join(_line(line, widths) + " " for line in (heads, *lines))


def _member(group: GroupDescription, member: MemberDescription, heads: Sequence[str]) -> list[str]:
    cells = {
        "GROUP": group.group_id,
        "CONSUMER-ID": member.member_id,
        "GROUP-INSTANCE-ID": member.instance_id or "-",
        "HOST": _host(member),
        "CLIENT-ID": member.client_id,
        "#PARTITIONS": str(len(member.assignment)),
        "CURRENT-EPOCH": "-" if member.member_epoch is None else str(member.member_epoch),
        "CURRENT-ASSIGNMENT": assignment(member.assignment),
        "TARGET-EPOCH": "-" if group.assignment_epoch is None else str(group.assignment_epoch),
        "TARGET-ASSIGNMENT": "-" if member.target_assignment is None else assignment(member.target_assignment),
        "UPGRADED": "-" if member.upgraded is None else str(member.upgraded).lower(),
    }
    return [cells[head] for head in heads]


def assignment(places: Sequence[tuple[str, int]]) -> str:
    """`topic:0,1;other:2`."""
    by_topic: dict[str, list[int]] = {}
    for topic, partition in sorted(places):
        by_topic.setdefault(topic, []).append(partition)
    return ";".join(f"{topic}:{','.join(map(str, indexes))}" for topic, indexes in by_topic.items()) or "-"


def state(group: GroupDescription, *, verbose: bool) -> str:
    """The group itself."""
    coordinator = f"{group.coordinator.host}:{group.coordinator.port}  ({group.coordinator.id})"
    heads = ["GROUP", "COORDINATOR (ID)", "ASSIGNMENT-STRATEGY", "STATE"]
    row = [group.group_id, coordinator, group.assignor or "-", group.state]
    widths = [_width(15, [group.group_id]), _width(25, [coordinator]), 20, 20]
    if verbose:
        heads += ["GROUP-EPOCH", "TARGET-ASSIGNMENT-EPOCH"]
        row += ["-" if epoch is None else str(epoch) for epoch in (group.group_epoch, group.assignment_epoch)]
        widths += [15, 25]
    heads.append("#MEMBERS")
    row.append(str(len(group.members)))
    widths.append(0)
    return "\n" + "\n".join(_line(line, widths) for line in (heads, row))


def reset(rows: Sequence[Sequence[Any]]) -> str:
    """New offsets."""
    lines = [[str(cell) for cell in row] for row in rows]
    widths = [_width(15, [line[0] for line in lines]), _width(15, [line[1] for line in lines]), 10, 0]
    heads = ["GROUP", "TOPIC", "PARTITION", "NEW-OFFSET"]
    return "\n" + "\n".join(_line(line, widths) for line in (heads, *lines))
