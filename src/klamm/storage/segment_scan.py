"""Reading a segment from one batch to the next in bulk: what recovery and rebuilding of producers are made of.

Plain batches go through a compiled kernel, a megabyte per call and without the interpreter's lock. What the kernel
leaves alone - markers, batches of another leader, anything that does not hold - is handed out one by one.
"""

from collections.abc import Callable, Iterator

from klamm.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, BatchView
from klamm.records.kernels import layout, recovery
from klamm.storage.leader_epochs import LeaderEpochs
from klamm.storage.log_segment import LogSegment
from klamm.storage.producer_state import ProducerStates

CHECKSUMS = True
"""Whether checksums are looked at; only a test would say no."""
_CHUNK = 1 << 20
_SLOTS = 256
_SLOT_WORDS = 32
_RING = 7
_BATCHES = 5
_BATCH_WORDS = 5
NEVER = 2**62


class SegmentScan:
    """One way through a segment from a batch boundary on. Iterate it; call `accept` for every batch it hands out.

    Everything before a batch that is handed out has been noted: in `producers`, in the segment's indexes when they
    are being rebuilt (`index`), in the plain attributes below.
    """

    def __init__(
        self,
        segment: LogSegment,
        producers: ProducerStates,
        *,
        position: int = 0,
        next_offset: int = 0,
        end_offset: int = NEVER,
        epochs: LeaderEpochs | None = None,
        interval: int = NEVER,
        index: bool = False,
        checked: bool = True,
        progress: Callable[[int], None] | None = None,
        stop: int | None = None,
    ) -> None:
        self._segment = segment
        self._stop = stop
        self._producers = producers
        self._end_offset = min(end_offset, NEVER)
        self._epochs = epochs
        self._interval = min(interval, NEVER)
        self._index = index
        self._checked = checked and CHECKSUMS
        self._progress = progress
        self._w = bytearray(8 * 12)
        self._words = memoryview(self._w).cast("q")
        self._words[1] = next_offset
        self._words[7] = position
        self._words[9], self._words[10] = -1, segment.base_offset
        self._slots = bytearray(_SLOTS * _SLOT_WORDS * 8)
        self._slot_words = memoryview(self._slots).cast("q")
        self._marks = bytearray()

    @property
    def position(self) -> int:
        """After the last batch that held."""
        return self._words[7]

    @property
    def next_offset(self) -> int:
        """The offset after the last batch that held."""
        return self._words[1]

    @property
    def largest(self) -> tuple[int, int]:
        """The largest timestamp so far, and the last offset of the first batch that has it."""
        return self._words[9], self._words[10]

    @property
    def unindexed(self) -> int:
        """Bytes since the last index entry."""
        return self._words[8]

    def accept(self, batch: BatchView) -> None:
        """The batch that was handed out holds: go on behind it."""
        words = self._words
        if batch.max_timestamp > words[9]:
            words[9], words[10] = batch.max_timestamp, batch.last_offset
        if words[8] > self._interval:
            self._mark(batch.last_offset, words[7], words[9], words[10])
            words[8] = 0
        words[8] += batch.size
        words[7] += batch.size
        words[1] = batch.next_offset

    def __iter__(self) -> Iterator[memoryview]:
        """Batches the kernel leaves to the caller. Ends where no whole batch follows, or none that could be one."""
        file, end = self._segment.open_file(), self._segment.size if self._stop is None else self._stop
        chunk_size = _CHUNK
        while self.position + HEADER_SIZE <= end:
            start = self.position
            chunk = memoryview(file.pread(min(chunk_size, end - start), start))
            chunk_size = _CHUNK
            while True:
                at = self.position - start
                reason = self._pass_over(chunk, at)
                at = self.position - start
                if reason == layout.END:
                    break
                if reason == layout.FULL:
                    continue
                size = HEADER.unpack_from(chunk, at)[1] + LOG_OVERHEAD if at + HEADER_SIZE <= len(chunk) else 0
                if size < HEADER_SIZE or at + size > len(chunk):
                    return
                before = self.position
                yield chunk[at : at + size]
                assert self.position > before, "whoever takes a batch calls `accept` or stops"
            if self._progress is not None:
                self._progress(at)
            if at == 0:
                # Not one whole batch: it is larger than the chunk, or it does not end within the file.
                if len(chunk) < HEADER_SIZE:
                    return
                chunk_size = HEADER.unpack_from(chunk, 0)[1] + LOG_OVERHEAD
                if start + chunk_size > end or chunk_size <= len(chunk):
                    return

    def _pass_over(self, chunk: memoryview, at: int) -> int:
        words = self._words
        if self._epochs is not None:
            words[2], words[3] = self._epochs.span(words[1])
        elif at + HEADER_SIZE <= len(chunk):
            words[2], words[3] = HEADER.unpack_from(chunk, at)[2], NEVER
        words[0], words[5], words[11] = at, 0, 0
        room = 32 * (len(chunk) // max(min(self._interval, 1 << 30), 61) + 2)
        if len(self._marks) < room:
            self._marks = bytearray(room)
        reason = recovery.check_batches(
            chunk,
            self._segment.base_offset,
            self._end_offset,
            self._checked,
            self._interval,
            self._marks,
            self._slots,
            self._w,
        )
        if words[11]:
            entries = memoryview(self._marks).cast("q")
            for i in range(0, 4 * words[11], 4):
                self._mark(*entries[i : i + 4])
        if words[4]:
            self._remember()
        return reason

    def _mark(self, last_offset: int, position: int, timestamp: int, its_offset: int) -> None:
        if self._index:
            self._segment.index.append(last_offset, position)  # type: ignore[union-attr]
            self._segment.time_index.maybe_append(timestamp, its_offset)  # type: ignore[union-attr]

    def _remember(self) -> None:
        """Tell the producers' state what the kernel noted of them."""
        slots = self._slot_words
        noted = []
        for at in range(0, _SLOTS * _SLOT_WORDS, _SLOT_WORDS):
            count = slots[at + 3]
            if count:
                batches = []
                for i in range(max(count - _BATCHES, 0), count):
                    ring = at + _RING + _BATCH_WORDS * (i % _BATCHES)
                    batches.append((slots[ring], slots[ring + 1], slots[ring + 2], slots[ring + 3], slots[ring + 4]))
                noted.append((slots[at + 4], slots[at], slots[at + 1], bool(slots[at + 2]), batches))
                slots[at + 3] = 0
        self._words[4] = 0
        # Transactions are remembered in the order in which they began.
        for first, producer_id, epoch, changed, batches in sorted(noted, key=lambda each: each[0]):
            self._producers.replay(producer_id, epoch, batches, first, changed=changed)
