"""Scanning a segment from batch to batch in bulk, for recovery and for rebuilding producer state.

Plain batches go through a compiled kernel, a megabyte per call and without the interpreter's lock. Batches that the
kernel does not handle (markers, batches of another leader, invalid ones) are yielded one by one.
"""

from collections.abc import Callable, Iterator
from operator import itemgetter

from klamm.records.batch import HEADER, HEADER_SIZE, LOG_OVERHEAD, BatchView
from klamm.records.kernels import layout, recovery
from klamm.storage.leader_epochs import LeaderEpochs
from klamm.storage.log_segment import LogSegment
from klamm.storage.producer_state import ProducerStates

CHECKSUMS = True
"""Whether checksums are compared; only tests turn this off."""
_CHUNK = 1 << 20
_SLOTS = 256
NEVER = 2**62


class SegmentScan:
    """One pass through a segment from a batch boundary on. Iterate it; call `accept` for every batch it yields.

    Everything before a batch that is yielded is in `producers`, in the segment's indexes when they are being rebuilt
    (`index`), and in the properties below.
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
        self._w = bytearray(8 * layout.PASS_WORDS)
        self._words = memoryview(self._w).cast("q")
        self._words[layout.EXPECTED_OFFSET] = next_offset
        self._words[layout.FILE_AT] = position
        self._words[layout.MAX_TIMESTAMP], self._words[layout.MAX_TIMESTAMP_OFFSET] = -1, segment.base_offset
        self._slots = bytearray(_SLOTS * layout.PRODUCER_WORDS * 8)
        self._slot_words = memoryview(self._slots).cast("q")
        self._marks = bytearray()

    @property
    def position(self) -> int:
        """The position after the last valid batch."""
        return self._words[layout.FILE_AT]

    @property
    def next_offset(self) -> int:
        """The offset after the last valid batch."""
        return self._words[layout.EXPECTED_OFFSET]

    @property
    def largest(self) -> tuple[int, int]:
        """The largest timestamp so far, and the last offset of the first batch that has it."""
        return self._words[layout.MAX_TIMESTAMP], self._words[layout.MAX_TIMESTAMP_OFFSET]

    @property
    def unindexed(self) -> int:
        """Bytes since the last index entry."""
        return self._words[layout.BYTES_SINCE_ENTRY]

    def accept(self, batch: BatchView) -> None:
        """Continue after the batch that was yielded: it is valid."""
        words = self._words
        if batch.max_timestamp > words[layout.MAX_TIMESTAMP]:
            words[layout.MAX_TIMESTAMP], words[layout.MAX_TIMESTAMP_OFFSET] = batch.max_timestamp, batch.last_offset
        if words[layout.BYTES_SINCE_ENTRY] > self._interval:
            self._add_index_entry(
                batch.last_offset,
                words[layout.FILE_AT],
                words[layout.MAX_TIMESTAMP],
                words[layout.MAX_TIMESTAMP_OFFSET],
            )
            words[layout.BYTES_SINCE_ENTRY] = 0
        words[layout.BYTES_SINCE_ENTRY] += batch.size
        words[layout.FILE_AT] += batch.size
        words[layout.EXPECTED_OFFSET] = batch.next_offset

    def __iter__(self) -> Iterator[memoryview]:
        """Yield the batches the kernel leaves to the caller. Ends where no complete batch follows."""
        file, end = self._segment.open_file(), self._segment.size if self._stop is None else self._stop
        chunk_size = _CHUNK
        while self.position + HEADER_SIZE <= end:
            start = self.position
            chunk = memoryview(file.pread(min(chunk_size, end - start), start))
            chunk_size = _CHUNK
            while True:
                at = self.position - start
                reason = self._run_kernel(chunk, at)
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
                assert self.position > before, "the caller must accept a batch or stop"
            if self._progress is not None:
                self._progress(at)
            if at == 0:
                # Not one complete batch: it is larger than the chunk, or it does not end within the file.
                if len(chunk) < HEADER_SIZE:
                    return
                chunk_size = HEADER.unpack_from(chunk, 0)[1] + LOG_OVERHEAD
                if start + chunk_size > end or chunk_size <= len(chunk):
                    return

    def _run_kernel(self, chunk: memoryview, at: int) -> int:
        words = self._words
        if self._epochs is not None:
            words[layout.LEADER_EPOCH], words[layout.EPOCH_END_OFFSET] = self._epochs.span(
                words[layout.EXPECTED_OFFSET]
            )
        elif at + HEADER_SIZE <= len(chunk):
            words[layout.LEADER_EPOCH], words[layout.EPOCH_END_OFFSET] = HEADER.unpack_from(chunk, at)[2], NEVER
        words[layout.INPUT_AT], words[layout.BATCHES_PASSED], words[layout.INDEX_ENTRIES] = at, 0, 0
        # 32 bytes per index entry; at most one per interval, and no batch is smaller than its 61-byte header.
        marks_bytes = 32 * (len(chunk) // max(min(self._interval, 1 << 30), 61) + 2)
        if len(self._marks) < marks_bytes:
            self._marks = bytearray(marks_bytes)
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
        if words[layout.INDEX_ENTRIES]:
            entries = memoryview(self._marks).cast("q")
            for i in range(0, 4 * words[layout.INDEX_ENTRIES], 4):
                self._add_index_entry(*entries[i : i + 4])
        if words[layout.PRODUCERS_NOTED]:
            self._replay_producers()
        return reason

    def _add_index_entry(self, last_offset: int, position: int, timestamp: int, its_offset: int) -> None:
        if self._index:
            self._segment.index.append(last_offset, position)  # type: ignore[union-attr]
            self._segment.time_index.maybe_append(timestamp, its_offset)  # type: ignore[union-attr]

    def _replay_producers(self) -> None:
        """Replay the batches that the kernel noted per producer into the producers' state."""
        slots = self._slot_words
        noted = []
        for at in range(0, _SLOTS * layout.PRODUCER_WORDS, layout.PRODUCER_WORDS):
            count = slots[at + layout.BATCHES_NOTED]
            if count:
                batches = []
                for i in range(max(count - layout.PRODUCER_BATCHES, 0), count):
                    ring = at + layout.PRODUCER_BATCHES_AT + layout.PRODUCER_BATCH_WORDS * (i % layout.PRODUCER_BATCHES)
                    batches.append((slots[ring], slots[ring + 1], slots[ring + 2], slots[ring + 3], slots[ring + 4]))
                noted.append(
                    (
                        slots[at + layout.TRANSACTION_START],
                        slots[at + layout.PRODUCER_ID],
                        slots[at + layout.PRODUCER_EPOCH],
                        bool(slots[at + layout.EPOCH_CHANGED]),
                        batches,
                    )
                )
                slots[at + layout.BATCHES_NOTED] = 0
        self._words[layout.PRODUCERS_NOTED] = 0
        # In the order in which transactions began: `ProducerStates` keeps open transactions sorted by insertion.
        for first, producer_id, epoch, changed, batches in sorted(noted, key=itemgetter(0)):
            self._producers.replay(producer_id, epoch, batches, first, changed=changed)
