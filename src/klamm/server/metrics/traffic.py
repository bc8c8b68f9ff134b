"""Records and bytes that producers brought, computed from the offsets of the logs.

An append moves the end of a log and the size of its segment, and nothing is counted beside that. What a leader has
taken in is the distance its log has moved since this node began to lead, which is noted when roles change.
"""

from klamm.replication import Replica, ReplicaManager
from klamm.server.metrics.snapshot import Totals


class _LedSpan:
    """What one replica took in as the leader."""

    __slots__ = ("base_bytes", "base_offset", "bytes", "leads", "records")

    def __init__(self) -> None:
        self.leads = False
        self.records = 0
        self.bytes = 0
        """Both from earlier times as the leader."""
        self.base_offset = 0
        self.base_bytes = 0

    def follow(self, replica: Replica) -> None:
        """Begin or end to count, if the role has changed."""
        if replica.leads == self.leads:
            return
        log = replica.log
        if replica.leads:
            self.base_offset, self.base_bytes = log.log_end_offset, log.segments.appended_bytes
        else:
            self.records += log.log_end_offset - self.base_offset
            self.bytes += log.segments.appended_bytes - self.base_bytes
        self.leads = replica.leads

    def read(self, replica: Replica) -> tuple[int, int]:
        """Return records and bytes."""
        if not self.leads:
            return self.records, self.bytes
        log = replica.log
        return (
            self.records + log.log_end_offset - self.base_offset,
            self.bytes + log.segments.appended_bytes - self.base_bytes,
        )


class ReplicaTraffic:
    """The traffic of all replicas of a node."""

    def __init__(self, replicas: ReplicaManager) -> None:
        self._spans: dict[Replica, _LedSpan] = {}
        self.removed = Totals()
        replicas.on_role.append(self.on_role)

    def on_role(self, replica: Replica) -> None:
        """Note a change of role, or add a replica that is removed to the totals."""
        span = self._spans.setdefault(replica, _LedSpan())
        span.follow(replica)
        if replica.retired:
            del self._spans[replica]
            removed = self.removed
            removed.records_in += span.records
            removed.bytes_in += span.bytes
            removed.bytes_out += replica.bytes_out
            removed.produces += replica.produces + replica.quick_produces
            removed.quick_produces += replica.quick_produces
            removed.fetches += replica.fetches
            removed.failed_produces += replica.failed_produces
            removed.failed_fetches += replica.failed_fetches

    def read(self, replica: Replica) -> tuple[int, int]:
        """Return the records and bytes that a replica took in as the leader."""
        span = self._spans.get(replica)
        return span.read(replica) if span is not None else (0, 0)
