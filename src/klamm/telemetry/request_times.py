"""The times of requests by API and phase, and of turns of the event loop.

    queue    from the turn's start, or its first timed request, to the request: others of the turn came before it
    local    the handler's own time
    remote   from the handler to the reply, for a reply that waits: for replicas, for records, for other members
    send     while the connection's socket takes no more of its replies

Requests that take a quick path are only counted. Their time is that of their turn: they are handled when its sockets
are read, and answered when it ends. So their distribution has the shape of the turns that wrote records.
"""

from typing import Final

from klamm.telemetry.histogram import Distribution, Histogram

PHASES: Final = ("queue", "local", "remote", "send")


class ApiTimes:
    """The requests of one API."""

    __slots__ = ("errors", "local", "name", "queue", "quick", "remote", "send", "total")

    def __init__(self, name: str) -> None:
        self.name = name
        self.queue = Histogram()
        self.local = Histogram()
        self.remote = Histogram()
        self.send = Histogram()
        self.total = Histogram()
        """Without the time to send the reply."""
        self.quick = 0
        """Requests on a quick path, which are not timed one by one."""
        self.errors: dict[int, int] = {}
        """Errors in responses by their code."""

    def observe(self, queue: float, local: float) -> None:
        """Record a request whose handler has returned."""
        self.queue.observe(queue)
        self.local.observe(local)

    def observe_reply(self, remote: float, total: float) -> None:
        """Record a reply that was made later than its request was handled."""
        self.remote.observe(remote)
        self.total.observe(total)

    def count_error(self, code: int) -> None:
        """Count an error in a response, of the request or of a part of it."""
        self.errors[code] = self.errors.get(code, 0) + 1

    def histograms(self) -> tuple[Histogram, ...]:
        """Return those of all phases and the total."""
        return self.queue, self.local, self.remote, self.send, self.total


class TurnTimes:
    """A sample of the turns of the event loop, one in 32 of a row (`net/poller`)."""

    __slots__ = ("slowest", "turns", "writes")

    def __init__(self) -> None:
        self.turns = Histogram()
        """The sampled turns: their shape, not their number."""
        self.writes = Histogram()
        """Turns that wrote records, each counted for every connection that was ready in it."""
        self.slowest = 0.0
        """The longest turn since this was last reset."""

    def observe(self, seconds: float, connections: int, wrote: bool) -> None:
        """Record a turn."""
        self.turns.observe(seconds)
        if wrote:
            self.writes.observe_many(seconds, connections)
        self.slowest = max(self.slowest, seconds)


class RequestTimes:
    """All APIs of a node, by key."""

    def __init__(self, names: dict[int, str]) -> None:
        self.by_key = {key: ApiTimes(name) for key, name in names.items()}
        self.turns = TurnTimes()

    def mark(self) -> None:
        """Begin the next window of the quantiles."""
        for times in self.by_key.values():
            # Most APIs are never called: their windows stay empty.
            if any(times.local.counts) or times.quick:
                for histogram in times.histograms():
                    histogram.mark()
        self.turns.turns.mark()
        self.turns.writes.mark()


def with_quick(timed: Distribution, quick: int, shape: Distribution) -> Distribution:
    """Return the times of an API with those of its quick path, which have the shape of the loop's turns."""
    return timed if not quick else timed.plus(shape.scale(quick))
