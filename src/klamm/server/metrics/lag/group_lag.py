"""The lag of groups in records and in seconds, from the logs themselves.

The lag in seconds is the age of the first record that a group has not committed: the time in the header of its batch,
which an index lookup finds. Nothing is sampled, so the first answer is as good as later ones. Partitions without a
replica on this node are asked of their leaders (`remote_partitions`).
"""

from typing import TYPE_CHECKING, Any, Final, NamedTuple

from klamm.model.errors import CorruptBatch, KlammError, StorageFailure
from klamm.server.metrics.lag.remote_partitions import RemotePartitions

if TYPE_CHECKING:
    from klamm.server.services import Services

TIMES_KEPT: Final = 50_000
"""Times of records that are kept: an offset's time never changes."""


class LagOfGroup(NamedTuple):
    """How far a group is behind in a partition; -1 for what is not known."""

    records: int
    seconds: float


UNKNOWN: Final = LagOfGroup(-1, -1.0)
NONE: Final = LagOfGroup(0, 0.0)


class GroupLags:
    """Computes lags on the loop, and remembers times of records."""

    def __init__(self, services: "Services") -> None:
        self._services = services
        self._times: dict[tuple[str, int, int], int] = {}
        self._remote = RemotePartitions(services)

    def find(self, topic: str, index: int, committed: int, now_ms: int) -> LagOfGroup:
        """Return the lag at a committed offset."""
        replica = self._services.replicas.find(topic, index)
        if replica is None:
            return self._find_remote(topic, index, committed, now_ms)
        records = max(replica.log.high_watermark - committed, 0)
        if not records:
            return NONE
        key = (topic, index, committed)
        time_ms = self._times.get(key, -1)
        if time_ms < 0:
            time_ms = self._read_time(replica, committed)
            if time_ms >= 0:
                if len(self._times) >= TIMES_KEPT:
                    self._times.clear()
                self._times[key] = time_ms
        return _lag(records, time_ms, now_ms)

    def _find_remote(self, topic: str, index: int, committed: int, now_ms: int) -> LagOfGroup:
        remote = self._remote.find(topic, index, committed)
        if remote is None or remote.end < 0:
            return UNKNOWN
        records = max(remote.end - committed, 0)
        return _lag(records, remote.estimate(committed), now_ms) if records else NONE

    def _read_time(self, replica: Any, offset: int) -> int:
        try:
            return int(replica.log.reader.timestamp_at(offset))
        except (KlammError, StorageFailure, CorruptBatch, OSError):
            # The log is offline or damaged, which other metrics and log lines show.
            return -1

    def refresh(self) -> None:
        """Ask other nodes for what was missing, if the last time is long enough ago."""
        self._remote.refresh()

    def close(self) -> None:
        """Ask no more."""
        self._remote.close()


def _lag(records: int, time_ms: int, now_ms: int) -> LagOfGroup:
    return LagOfGroup(records, max(now_ms - time_ms, 0) / 1000 if time_ms >= 0 else -1.0)
