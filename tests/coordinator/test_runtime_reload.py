"""Shards that are loaded again: a full disk, too few replicas, requests meanwhile."""

import asyncio
from types import SimpleNamespace

import pytest

from klamm.coordinator import CoordinatorRecord, Decision, Now
from klamm.coordinator.runtime import coordinator_runtime
from klamm.model.errors import ErrorCode

from .runtime_harness import Counter, Log, RuntimeHarness, code, until

pytestmark = pytest.mark.asyncio


class FullLog(Log):
    """A log whose disk may be full: what a turn appended is refused at its end, otherwise committed."""

    full = False

    def append(self, batch: bytearray, transaction_version: int = 0) -> int:
        base = super().append(batch, transaction_version)
        asyncio.get_running_loop().call_soon(self.settle)
        return base

    def settle(self) -> None:
        if self.end_offset > self.high_watermark:
            if self.full:
                self.fail(ErrorCode.KAFKA_STORAGE_ERROR)
            else:
                self.commit()


class Eager(Counter):
    """Writes as soon as it is loaded, as a group does whose members have gone meanwhile."""

    def on_loaded(self, image, now: Now) -> Decision:
        return Decision(records=(CoordinatorRecord(b"loaded", b""),))


async def test_a_shard_on_a_full_disk_is_not_loaded_in_a_loop(monkeypatch):
    monkeypatch.setattr(coordinator_runtime, "RELOAD_S", 0.001)
    monkeypatch.setattr(coordinator_runtime, "RELOAD_MAX_S", 0.004)
    lines, pauses = [], []
    fake_log = SimpleNamespace(warning=lambda text, **_: lines.append(text), info=lambda *_, **__: None)
    monkeypatch.setattr(coordinator_runtime, "log", fake_log)
    harness = RuntimeHarness()
    harness.logs[0] = full = FullLog()
    harness.runtime._make_shard = lambda _partition, _epoch: Eager()
    start = harness.runtime._start_loading

    def note(partition, epoch, pause_s=0.0):
        pauses.append(pause_s)
        start(partition, epoch, pause_s)

    harness.runtime._start_loading = note
    full.full = True
    harness.runtime.load(0, 1)
    await until(lambda: len(pauses) >= 7)
    assert pauses[:7] == [0.0, 0.0, 0.001, 0.002, 0.004, 0.004, 0.004], "at once, at once, then later and later"
    assert lines == ["coordinator reloading: write failed"], "said once"
    full.full = False
    await until(lambda: harness.runtime.active and full.high_watermark)
    written = harness.put("a", "1")
    await until(lambda: written)
    assert written == ["1"], "there is room again"

    del pauses[:]
    full.full = True
    lost = harness.put("a", "2")
    await until(lambda: lost and len(pauses) >= 3)
    assert code(lost) is ErrorCode.NOT_COORDINATOR
    assert (pauses[:3], len(lines)) == ([0.0, 0.001, 0.002], 2), "a later failure is logged and counted anew"
    harness.runtime.stop()


class Behind(Log):
    """A log that refuses appends while too few replicas are in sync, and counts how often that is checked."""

    def __init__(self) -> None:
        self.behind, self.checks = False, 0
        super().__init__()

    @property
    def under_min_isr(self) -> bool:
        self.checks += 1
        return self.behind

    @under_min_isr.setter
    def under_min_isr(self, value: bool) -> None:
        self.behind, self.refuse = value, ErrorCode.NOT_ENOUGH_REPLICAS if value else None


async def test_a_shard_without_enough_replicas_is_loaded_when_they_are_back(monkeypatch):
    monkeypatch.setattr(coordinator_runtime, "RELOAD_S", 0.001)
    monkeypatch.setattr(coordinator_runtime, "IN_SYNC_S", 0.001)
    harness = RuntimeHarness()
    harness.logs[0] = log = Behind()
    made = []
    harness.runtime._make_shard = lambda *_: made.append(Counter()) or made[-1]
    await harness.load()
    log.under_min_isr = True
    assert code(harness.put("a", "1")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await harness.loaded()
    assert (len(made), harness.get("a")) == (2, [None]), "at once, so that reads are served"
    assert code(harness.put("a", "1")) is ErrorCode.COORDINATOR_NOT_AVAILABLE
    await until(lambda: log.checks > 10)
    assert code(harness.put("a", "1")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    assert len(made) == 2, "and then no more, however long it lasts"
    log.under_min_isr = False
    await harness.loaded()
    written = harness.put("a", "1")
    log.commit()
    assert (written, len(made)) == (["1"], 3)
    harness.runtime.stop()


async def test_who_asks_a_shard_that_is_left_alone_hears_that_it_is_being_loaded(monkeypatch):
    monkeypatch.setattr(coordinator_runtime, "RELOAD_S", 3600.0)
    monkeypatch.setattr(coordinator_runtime, "RELOAD_MAX_S", 3600.0)
    harness = RuntimeHarness()
    harness.logs[0] = full = FullLog()
    await harness.load()
    full.full = True
    for value in ("1", "2"):
        await harness.loaded()
        lost = harness.put("a", value)
        await until(lambda lost=lost: lost)
    assert code(harness.get("a")) is ErrorCode.COORDINATOR_LOAD_IN_PROGRESS
    full.full = False
    await harness.load(epoch=2)
    assert harness.get("a") == [None], "a new epoch begins anew"
    harness.runtime.stop()
