"""Finds in a history what must never happen, by the names Jepsen's tests of queues gave it.

Pure: a history in, findings out. What is allowed: a send or a transaction of unknown fate may have happened or not.
"""

from collections import defaultdict
from dataclasses import dataclass

from chaos.history import Fate, History, Place, Send

SHOWN_MAX = 5


@dataclass(frozen=True, slots=True)
class Finding:
    """One kind of violation, with some of its cases."""

    kind: str
    count: int
    cases: tuple[str, ...]

    def __str__(self) -> str:
        more = f" and {self.count - len(self.cases)} more" if self.count > len(self.cases) else ""
        return f"{self.kind} ({self.count}): {'; '.join(self.cases)}{more}"


def check(history: History) -> list[Finding]:
    """All violations of a run; empty when there are none."""
    checks = {
        "lost-write": lost_writes,
        "duplicate": duplicates,
        "inconsistent-offsets": inconsistent_offsets,
        "aborted-read": aborted_reads,
        "unseen": unseen,
        "nonmonotonic-send": nonmonotonic_sends,
        "nonmonotonic-poll": nonmonotonic_polls,
        "torn-transaction": torn_transactions,
        "out-of-thin-air": out_of_thin_air,
        "refused-transaction": refused_transactions,
    }
    findings = []
    for kind, find in checks.items():
        cases = find(history)
        if cases:
            findings.append(Finding(kind, len(cases), tuple(cases[:SHOWN_MAX])))
    return findings


def _fate(history: History) -> dict[tuple[str, int], tuple[Fate, bool]]:
    return {
        (transaction.worker, transaction.number): (transaction.fate, transaction.commits)
        for transaction in history.transactions
    }


def _acknowledged(history: History) -> list[Send]:
    """Sends that must be readable: acknowledged and, in a transaction, its commit acknowledged too."""
    fates = _fate(history)
    return [
        send
        for send in history.sends
        if send.fate is Fate.OK
        and (send.transaction is None or fates.get((send.worker, send.transaction)) == (Fate.OK, True))
    ]


def _read(history: History) -> dict[Place, dict[int, int]]:
    """By partition, offset to value, of everything that any consumer read."""
    read: dict[Place, dict[int, int]] = defaultdict(dict)
    for poll in history.polls:
        read[poll.place].update(poll.rows)
    for place, rows in history.final.items():
        read[place].update(rows)
    return read


def lost_writes(history: History) -> list[str]:
    """Acknowledged, or read once, and not in the log at the end."""
    present = {place: {value for _, value in rows} for place, rows in history.final.items()}
    lost = [
        f"{send.value} of {send.worker} in {send.place}, acknowledged at {send.offset}"
        for send in _acknowledged(history)
        if send.value not in present.get(send.place, ())
    ]
    vanished = {
        (poll.place, offset, value)
        for poll in history.polls
        for offset, value in poll.rows
        if value not in present.get(poll.place, ())
    }
    return lost + [f"{value} in {place}, read at {offset} once" for place, offset, value in sorted(vanished)]


def duplicates(history: History) -> list[str]:
    """One value at two offsets of the final log."""
    cases = []
    for place, rows in history.final.items():
        seen: dict[int, int] = {}
        for offset, value in rows:
            if value in seen:
                cases.append(f"{value} in {place} at {seen[value]} and {offset}")
            seen.setdefault(value, offset)
    return cases


def inconsistent_offsets(history: History) -> list[str]:
    """Two values that were acknowledged, or read, at one offset."""
    acknowledged: dict[tuple[Place, int], set[int]] = defaultdict(set)
    for send in history.sends:
        if send.fate is Fate.OK and send.offset >= 0:
            acknowledged[send.place, send.offset].add(send.value)
    for poll in history.polls:
        for offset, value in poll.rows:
            acknowledged[poll.place, offset].add(value)
    for place, rows in history.final.items():
        for offset, value in rows:
            acknowledged[place, offset].add(value)
    return [
        f"{place} at {offset}: {sorted(values)}"
        for (place, offset), values in sorted(acknowledged.items())
        if len(values) > 1
    ]


def aborted_reads(history: History) -> list[str]:
    """Read, although the transaction was aborted or the send certainly failed (G1a)."""
    fates = _fate(history)
    dead = {}
    for send in history.sends:
        if send.fate is Fate.FAILED:
            dead[send.value] = "failed"
        elif send.transaction is not None:
            fate, commits = fates.get((send.worker, send.transaction), (Fate.UNKNOWN, True))
            if (fate is Fate.OK and not commits) or fate is Fate.FAILED:
                dead[send.value] = f"aborted in transaction {send.transaction} of {send.worker}"
    return [
        f"{value} in {place} at {offset}, {dead[value]}"
        for place, rows in sorted(_read(history).items())
        for offset, value in sorted(rows.items())
        if value in dead
    ]


def unseen(history: History) -> list[str]:
    """In the log at the end, and never returned to the consumers that read along."""
    if not history.polls:
        return []
    polled: dict[Place, set[int]] = defaultdict(set)
    for poll in history.polls:
        polled[poll.place].update(value for _, value in poll.rows)
    followed = {place.topic for place in polled}
    return [
        f"{value} in {place} at {offset}"
        for place, rows in history.final.items()
        if place.topic in followed
        for offset, value in rows
        if value not in polled[place]
    ]


def nonmonotonic_sends(history: History) -> list[str]:
    """A producer's records not in the order it sent them, by the log or by its acknowledgements."""
    position = {place: {value: offset for offset, value in rows} for place, rows in history.final.items()}
    last: dict[tuple[str, Place], tuple[int, int]] = {}
    acknowledged: dict[tuple[str, Place], tuple[int, int]] = {}
    cases = []
    for send in sorted(history.sends, key=lambda sent: sent.number):
        by = (send.worker, send.place)
        offset = position.get(send.place, {}).get(send.value)
        if offset is not None:
            if by in last and offset <= last[by][1]:
                cases.append(
                    f"{send.worker} in {send.place}: {last[by][0]} at {last[by][1]}, then {send.value} at {offset}"
                )
            last[by] = (send.value, offset)
        if send.fate is Fate.OK and send.offset >= 0:
            if by in acknowledged and send.offset <= acknowledged[by][1]:
                cases.append(
                    f"{send.worker} in {send.place}: {acknowledged[by][0]} acknowledged at {acknowledged[by][1]},"
                    f" then {send.value} at {send.offset}"
                )
            acknowledged[by] = (send.value, send.offset)
    return cases


def nonmonotonic_polls(history: History) -> list[str]:
    """A consumer whose offsets went back, or stood still, without a new assignment."""
    last: dict[tuple[str, int, Place], int] = {}
    cases = []
    for poll in history.polls:
        by = (poll.worker, poll.session, poll.place)
        for offset, value in poll.rows:
            if offset <= last.get(by, -1):
                cases.append(f"{poll.worker} in {poll.place}: {value} at {offset} after {last[by]}")
            last[by] = max(offset, last.get(by, -1))
    return cases


def torn_transactions(history: History) -> list[str]:
    """Some records of one transaction are there and others are not."""
    present = {place: {value for _, value in rows} for place, rows in history.final.items()}
    parts: dict[tuple[str, int], list[Send]] = defaultdict(list)
    for send in history.sends:
        if send.transaction is not None and send.fate is not Fate.FAILED:
            parts[send.worker, send.transaction].append(send)
    cases = []
    for key, sends in parts.items():
        there = [send for send in sends if send.value in present.get(send.place, ())]
        if there and len(there) < len(sends):
            missing = next(send for send in sends if send.value not in present.get(send.place, ()))
            cases.append(f"transaction {key[1]} of {key[0]}: {there[0].value} is there, {missing.value} is not")
    return cases


def out_of_thin_air(history: History) -> list[str]:
    """Read, and never sent to that place."""
    sent = {(send.place, send.value) for send in history.sends}
    return [
        f"{value} in {place} at {offset}"
        for place, rows in sorted(_read(history).items())
        for offset, value in sorted(rows.items())
        if (place, value) not in sent
    ]


def refused_transactions(history: History) -> list[str]:
    """A producer's transaction was open, and an error denied that: no fault explains it."""
    return history.refused
