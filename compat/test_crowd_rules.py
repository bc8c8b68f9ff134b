"""The rules for groups detect each planted violation, and accept a correct history."""

from types import SimpleNamespace
from typing import Any

import pytest

from compat import crowds
from compat.crowds import Crowd, Member

Events = list[tuple[int, str, int, frozenset[int]]]


class Home:
    """A program of members whose output the test provides."""

    def __init__(self) -> None:
        self.reports: dict[str, dict[str, Any]] = {}

    def call(self, order: str, **fields: Any) -> dict[str, Any]:
        assert order == "members"
        return {"members": {name: self.reports[name] for name in fields["members"]}}


def crowd(*lives: Events, seen: tuple[str, ...] = ()) -> Crowd:
    """A group of two partitions whose members have had these lives."""
    broker = SimpleNamespace(bootstrap="", log_tail=lambda _lines: "")
    java = SimpleNamespace(create=lambda *_: None)
    made = Crowd(broker, java, "t", "range", 2)  # type: ignore[arg-type]
    home = Home()
    for number, events in enumerate(lives):
        name = f"m{number}"
        owned = sorted(events[-1][3]) if events else []
        home.reports[name] = {
            "owned": owned, "events": events, "seen": seen, "problems": [], "alive": True,
        }  # fmt: skip
        made.members[name] = Member(name, home)  # type: ignore[arg-type]
    made.refresh()
    return made


def held(*partitions: int) -> frozenset[int]:
    return frozenset(partitions)


HONEST: tuple[Events, Events] = (
    [(1000, "assigned", 1, held(0, 1)), (5000, "revoked", 2, held(0))],
    [(5100, "assigned", 2, held(1))],
)


def test_an_honest_life_breaks_no_rule() -> None:
    group = crowd(*HONEST, seen=("0:0", "1:0"))
    group.written = {(0, 0), (1, 0)}
    group.drain()
    group.settle()
    group.assert_one_owner()
    group.assert_kept({"m0": held(0, 1)}, {"m0": 1})


def test_two_owners_at_one_time_are_found() -> None:
    group = crowd([(1000, "assigned", 1, held(0, 1))], [(9000, "assigned", 2, held(1))])
    with pytest.raises(AssertionError, match="both hold 1"):
        group.assert_one_owner()


def test_two_owners_in_one_generation_are_found() -> None:
    first: Events = [(1000, "assigned", 1, held(0, 1)), (2000, "revoked", 1, held())]
    group = crowd(first, [(9000, "assigned", 1, held(1))])
    with pytest.raises(AssertionError, match="two owners in one generation"):
        group.assert_one_owner()


def test_a_member_that_does_not_keep_what_it_may_is_found() -> None:
    moved: Events = [(1000, "assigned", 1, held(0)), (5000, "assigned", 2, held(1))]
    with pytest.raises(AssertionError, match="kept"):
        crowd(moved).assert_kept({"m0": held(0)}, {"m0": 1})
    between: Events = [(1000, "assigned", 1, held(0)), (5000, "revoked", 2, held()), (5100, "assigned", 2, held(0))]
    with pytest.raises(AssertionError, match="lost hold"):
        crowd(between).assert_kept({"m0": held(0)}, {"m0": 1})


def test_a_record_nobody_read_and_a_partition_nobody_owns_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(crowds, "STABLE_TIMEOUT_S", 0.1)
    group = crowd(*HONEST, seen=("0:0",))
    group.written = {(0, 0), (1, 0)}
    with pytest.raises(AssertionError, match="records are missing"):
        group.drain()
    with pytest.raises(AssertionError, match="does not settle"):
        crowd([(1000, "assigned", 1, held(0))]).settle()
