"""A coordinator runtime over logs in memory, for tests of what it does with decisions."""

import asyncio
from collections.abc import Hashable

from klamm.coordinator import CoordinatorRecord, CoordinatorRuntime, Decision, Now, Shard
from klamm.model.clock import ManualClock
from klamm.model.errors import ErrorCode, KlammError
from klamm.records.batch import BatchView


class Log:
    """A log that commits when the test calls `commit`."""

    def __init__(self) -> None:
        self.batches: list[bytes] = []
        self.end_offset = 0
        self.high_watermark = 0
        self.leader_epoch = 1
        self.batch_bytes_max = 1 << 20
        self.under_min_isr = False
        self.refuse: ErrorCode | None = None
        self._waiting: list = []
        self._gathering: list = []

    def append_at_turn_end(self, append) -> int:
        if self.refuse is not None:
            raise KlammError(self.refuse)
        self._gathering.append(append)
        asyncio.get_running_loop().call_soon(self.end_turn)
        return self.end_offset

    def end_turn(self) -> None:
        gathering, self._gathering = self._gathering, []
        for append in gathering:
            append()

    def append(self, batch: bytearray, transaction_version: int = 0) -> int:
        if self.refuse is not None:
            raise KlammError(self.refuse)
        base = self.end_offset
        view = BatchView(batch)
        view.set_offset_and_epoch(base, 1)
        self.batches.append(bytes(batch))
        self.end_offset = view.next_offset
        return base

    def when_committed(self, end_offset, settled) -> None:
        if end_offset <= self.high_watermark:
            settled(ErrorCode.NONE)
        else:
            self._waiting.append((end_offset, settled))

    def commit(self) -> None:
        self.end_turn()
        self.high_watermark = self.end_offset
        waiting, self._waiting = self._waiting, []
        for _, settled in waiting:
            settled(ErrorCode.NONE)

    def fail(self, error: ErrorCode) -> None:
        """The last batch could not be written."""
        self.end_turn()
        self.batches.pop()
        self.end_offset = self.high_watermark
        waiting, self._waiting = self._waiting, []
        for _, settled in waiting:
            settled(error)

    def read(self, offset: int) -> bytes:
        return b"".join(b for b in self.batches if BatchView(b).next_offset > offset)


class Counter(Shard):
    """Keeps texts by key; what a shard is, and no more."""

    def __init__(self) -> None:
        self.values: dict[bytes, bytes | None] = {}
        self.pending: dict[int, list[CoordinatorRecord]] = {}
        self.parked: list = []
        self.fired: list[Hashable] = []
        self.images = 0
        self.loaded = 0

    def replay(
        self, record: CoordinatorRecord, offset: int = -1, producer_id: int = -1, producer_epoch: int = -1
    ) -> None:
        if record.key == b"bad":
            raise ValueError("a record that cannot be replayed")
        if producer_id >= 0:
            self.pending.setdefault(producer_id, []).append(record)
        else:
            self.values[record.key] = record.value

    def replay_marker(self, producer_id: int, producer_epoch: int, committed: bool) -> None:
        for record in self.pending.pop(producer_id, []):
            if committed:
                self.values[record.key] = record.value

    def on_loaded(self, image, now: Now) -> Decision:
        self.loaded += 1
        return Decision(timers=((("tick",), now.ms + 1000),))

    def on_timer(self, key: Hashable, now: Now) -> Decision:
        self.fired.append(key)
        return Decision()

    def on_metadata(self, delta, image, now: Now) -> Decision:
        self.images += 1
        return Decision()

    def waiting(self):
        return self.parked

    def put(self, key: str, value: str, reply_to) -> Decision:
        return Decision(records=(CoordinatorRecord(key.encode(), value.encode()),), replies=((reply_to, value),))

    def get(self, key: str, reply_to) -> Decision:
        return Decision(replies=((reply_to, self.values.get(key.encode())),))

    def park(self, reply_to) -> Decision:
        self.parked.append(reply_to)
        return Decision()


class RuntimeHarness:
    """A runtime of two partitions around logs in memory."""

    def __init__(self) -> None:
        self.logs = {0: Log(), 1: Log()}
        self.clock = ManualClock()
        self.runtime: CoordinatorRuntime[Counter] = CoordinatorRuntime(
            "__things",
            lambda _partition, _epoch: Counter(),
            self.logs.get,
            loop=asyncio.get_running_loop(),
            clock=self.clock,
            write_timeout_ms=50,
        )
        self.runtime.partitions = 2

    async def load(self, partition: int = 0, epoch: int = 1) -> None:
        self.runtime.load(partition, epoch)
        await self.loaded()

    async def loaded(self) -> None:
        while self.runtime.loading:  # noqa: ASYNC110 - loading takes a few turns of this very loop
            await asyncio.sleep(0)

    def submit(self, decide, partition: int = 0) -> list:
        answers: list = []
        self.runtime.submit(partition, lambda shard, _, reply_to: decide(shard, reply_to), answers.append)
        return answers

    def put(self, key: str, value: str) -> list:
        return self.submit(lambda shard, reply_to: shard.put(key, value, reply_to))

    def get(self, key: str) -> list:
        return self.submit(lambda shard, reply_to: shard.get(key, reply_to))


def code(answers: list) -> ErrorCode:
    (answer,) = answers
    assert isinstance(answer, KlammError)
    return answer.code


async def until(condition) -> None:
    async with asyncio.timeout(60):
        while not condition():  # noqa: ASYNC110 - a state of this very loop
            await asyncio.sleep(0.001)
