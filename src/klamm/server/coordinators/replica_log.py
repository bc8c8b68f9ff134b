"""The log of a coordinator's shard: a replica that this node leads, appended to like a producer's partition."""

from collections.abc import Callable

from klamm.model.errors import ErrorCode, KlammError
from klamm.replication import Replica, ReplicaManager
from klamm.replication.core.acknowledgements import NEVER_MS

READ_BYTES = 4 << 20


class CommitCallback:
    """A pending acknowledgement within this node: `callback` gets NONE once records are committed, else the error."""

    __slots__ = ("_callback", "deadline_ms", "required_offset")

    def __init__(self, end_offset: int, callback: Callable[[ErrorCode], None], deadline_ms: int = NEVER_MS) -> None:
        self.required_offset = end_offset
        self.deadline_ms = deadline_ms
        self._callback = callback

    def succeed(self) -> None:
        """Report that the records are committed."""
        self._callback(ErrorCode.NONE)

    def fail(self, error: ErrorCode, message: str | None = None) -> None:  # noqa: ARG002 - callers know the partition
        """Report why they are not."""
        self._callback(error)


class ReplicaLog:
    """One led replica as `coordinator.PartitionLog`."""

    def __init__(self, replicas: ReplicaManager, replica: Replica) -> None:
        self._replicas = replicas
        self._replica = replica

    @property
    def leader_epoch(self) -> int:
        """The epoch under which this node leads."""
        return self._replica.leader_epoch

    @property
    def end_offset(self) -> int:
        """The offset after everything appended."""
        # Staged batches included, which `log_end_offset` does not count before the write.
        return self._replica.log.next_offset

    @property
    def batch_bytes_max(self) -> int:
        """The topic's max.message.bytes."""
        return self._replica.log.config.max_message_bytes

    @property
    def under_min_isr(self) -> bool:
        """Whether the ISR is smaller than the topic's min.insync.replicas."""
        return self._replica.state.under_min_isr

    def append(self, batch: bytearray, transaction_version: int = 0) -> int:
        """Stage a batch; it is written when the turn ends."""
        self._check()
        return self._replicas.stage_from_coordinator(self._replica, memoryview(batch), transaction_version)

    def append_at_turn_end(self, append: Callable[[], None]) -> int:
        """Have a batch appended when the turn ends."""
        self._check()
        # At the end of the turn, so that the decisions of the whole turn share one batch.
        self._replicas.before_write(append)
        return self._replica.log.next_offset

    def _check(self) -> None:
        replica = self._replica
        if not replica.leads:
            raise KlammError(ErrorCode.NOT_LEADER_OR_FOLLOWER)
        if self.under_min_isr:
            # Refused before the append: a record that is in the log counts for the shard, acknowledged or not.
            raise KlammError(ErrorCode.NOT_ENOUGH_REPLICAS)

    def when_committed(self, end_offset: int, callback: Callable[[ErrorCode], None]) -> None:
        """Call `callback` once the ISR has everything before `end_offset`, or with the error that prevents it."""
        self._replicas.acknowledge(self._replica, CommitCallback(end_offset, callback), acks_all=True)

    def read(self, offset: int) -> bytes:
        """Return complete batches from `offset` on; empty at the end."""
        log = self._replica.log
        start = max(offset, log.log_start_offset)
        # Up to the end, not the high watermark: what a leader has appended counts for the shard that it loads.
        region = log.read(start, READ_BYTES, log.log_end_offset) if start < log.log_end_offset else None
        return region.read() if region is not None else b""
