"""A turn ends once: commit first, then every connection sends."""

import asyncio

import pytest

from klamm.net import LoopTurn

pytestmark = pytest.mark.asyncio


class Channel:
    def __init__(self, name, events) -> None:
        self.name, self.events = name, events

    def flush(self) -> None:
        self.events.append(f"flush {self.name}")

    def close(self, reason) -> None:
        self.events.append(f"close {self.name}")


async def test_the_commit_comes_before_every_reply():
    events = []
    turn = LoopTurn(asyncio.get_running_loop(), lambda: events.append("commit"))
    turn.mark(Channel("a", events))
    turn.mark(Channel("b", events))
    turn.schedule()
    assert events == []
    await asyncio.sleep(0)
    assert events == ["commit", "flush a", "flush b"]
    await asyncio.sleep(0)
    assert len(events) == 3


async def test_what_the_commit_makes_ready_leaves_in_the_same_turn():
    events, errors = [], []
    turn = LoopTurn(asyncio.get_running_loop())
    turn.before_flush(lambda: turn.mark(Channel("late", events)), errors.append)
    turn.schedule()
    await asyncio.sleep(0)
    assert events == ["flush late"]


async def test_nothing_is_promised_when_the_commit_fails():
    events, errors = [], []

    def fail():
        raise ZeroDivisionError

    turn = LoopTurn(asyncio.get_running_loop())
    turn.before_flush(fail, errors.append)
    turn.mark(Channel("a", events))
    await asyncio.sleep(0)
    assert events == ["close a"]
    assert isinstance(errors[0], ZeroDivisionError)
    turn.before_flush(lambda: None, errors.append)
    turn.mark(Channel("b", events))
    await asyncio.sleep(0)
    assert events == ["close a", "flush b"]
