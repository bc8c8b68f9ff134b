"""A turn ends once: commit first, then every connection sends."""

import asyncio

import pytest

from klamm.net import LoopTurn

pytestmark = pytest.mark.asyncio


class Channel:
    def __init__(self, name, told) -> None:
        self.name, self.told = name, told

    def flush(self) -> None:
        self.told.append(f"flush {self.name}")

    def close(self, reason) -> None:
        self.told.append(f"close {self.name}")


async def test_the_commit_comes_before_every_reply():
    told = []
    turn = LoopTurn(asyncio.get_running_loop(), lambda: told.append("commit"))
    turn.mark(Channel("a", told))
    turn.mark(Channel("b", told))
    turn.schedule()
    assert told == []
    await asyncio.sleep(0)
    assert told == ["commit", "flush a", "flush b"]
    await asyncio.sleep(0)
    assert len(told) == 3


async def test_what_the_commit_makes_ready_leaves_in_the_same_turn():
    told, errors = [], []
    turn = LoopTurn(asyncio.get_running_loop())
    turn.on_commit(lambda: turn.mark(Channel("late", told)), errors.append)
    turn.schedule()
    await asyncio.sleep(0)
    assert told == ["flush late"]


async def test_nothing_is_promised_when_the_commit_fails():
    told, errors = [], []

    def fail():
        raise ZeroDivisionError

    turn = LoopTurn(asyncio.get_running_loop())
    turn.on_commit(fail, errors.append)
    turn.mark(Channel("a", told))
    await asyncio.sleep(0)
    assert told == ["close a"]
    assert isinstance(errors[0], ZeroDivisionError)
    turn.on_commit(lambda: None, errors.append)
    turn.mark(Channel("b", told))
    await asyncio.sleep(0)
    assert told == ["close a", "flush b"]
