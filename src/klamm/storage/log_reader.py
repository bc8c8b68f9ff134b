"""Reading a log: which bytes of which file answer a fetch, which transactions were aborted, offsets by time."""

from klamm.model.errors import ErrorCode, KlammError
from klamm.storage.disk import FileSlice
from klamm.storage.log_state import LogState, LogStatus
from klamm.storage.timestamp_lookup import TimestampOffset, find_max_timestamp, find_timestamp
from klamm.storage.txn_index import AbortedTxn

_OFFLINE = LogStatus.OFFLINE


class LogReader:
    """The reading side of a log. Changes nothing but the cache of open files and the hints for sequential reads."""

    __slots__ = ("_read_segments", "_segments", "_state")

    def __init__(self, state: LogState) -> None:
        self._state = state
        self._segments = state.segments
        self._read_segments = state.segments.read

    def read(self, offset: int, max_bytes: int, upper_offset: int, *, min_one: bool = True) -> FileSlice | None:
        """Return where the bytes are: whole batches, the first holds `offset`, none begins at or after `upper_offset`.

        One segment per call. `min_one` gives the first batch even if it is larger than `max_bytes`. None when there is
        nothing to read; OFFSET_OUT_OF_RANGE outside [log start, log end].
        """
        state = self._state
        # Inline instead of `check_online`: a fetch comes through here once per partition.
        if state.status is _OFFLINE:
            state.check_online()
        end = state.log_end_offset
        if not state.log_start_offset <= offset <= end:
            raise KlammError(
                ErrorCode.OFFSET_OUT_OF_RANGE,
                f"offset {offset} of {state.name} is outside [{state.log_start_offset}, {end}]",
            )
        # A fetch at the end of the log is not an error: the caller waits for an append.
        if offset >= upper_offset or offset == end:
            return None
        return self._read_segments(offset, max_bytes, upper_offset, end, min_one)

    def aborted_transactions(self, start: int, end: int) -> list[AbortedTxn]:
        """Return the aborted transactions whose records a read_committed reader of [start, end) must skip."""
        return self._segments.aborted_transactions(start, end)

    def offset_for_timestamp(self, timestamp: int, first_offset: int = 0) -> TimestampOffset | None:
        """Return the first record from `first_offset` on whose timestamp is at least `timestamp`.

        Raises SearchElsewhere when that takes longer than the loop may block.
        """
        self._state.check_online()
        return find_timestamp(self._segments, timestamp, max(first_offset, self._state.log_start_offset))

    def timestamp_at(self, offset: int) -> int:
        """Return the time of the record at an offset, or of the next one there is; -1 if there is none.

        Only the header of its batch is read. Within a batch the time is interpolated between its first and last record.
        """
        self._state.check_online()
        for segment in self._segments.from_offset(max(offset, self._state.log_start_offset)):
            location = segment.find(offset)
            if location is None:
                continue
            return next(segment.headers(location.position)).timestamp_at(offset)
        return -1

    def offset_of_max_timestamp(self) -> TimestampOffset | None:
        """Return the first record with the largest timestamp of the log; may raise SearchElsewhere."""
        self._state.check_online()
        return find_max_timestamp(self._segments, self._state.log_start_offset)
