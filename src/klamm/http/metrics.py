"""Counters of requests, and values of the service, in Prometheus' text format."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from typing import Final, NamedTuple

CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
_BUCKETS_S: Final = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)


class ServiceMetric(NamedTuple):
    """A value of a service; a name without a prefix gets that of the service."""

    name: str
    kind: str
    """gauge or counter."""
    help_text: str
    value: float
    is_full_name: bool = False
    """The name has its prefix already: one that dashboards of other products use."""


class RequestMetrics:
    """Requests by route: how many, and how long they took. Routes are patterns, so there are few."""

    def __init__(self, prefix: str) -> None:
        self._prefix = prefix
        self._requests: dict[tuple[str, str, int], int] = {}
        self._buckets: dict[tuple[str, str], list[int]] = {}
        self._seconds: dict[tuple[str, str], float] = {}
        self.in_flight = 0

    def count(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count one request."""
        self._requests[method, route, status] = self._requests.get((method, route, status), 0) + 1
        key = (method, route)
        buckets = self._buckets.get(key)
        if buckets is None:
            buckets = self._buckets[key] = [0] * (len(_BUCKETS_S) + 1)
        buckets[bisect_left(_BUCKETS_S, seconds)] += 1
        self._seconds[key] = self._seconds.get(key, 0.0) + seconds

    def render(self, more: Iterable[ServiceMetric] = ()) -> str:
        """Return the counters, and the values of the service."""
        lines = [*self._request_lines(), *self._duration_lines()]
        in_flight = ServiceMetric("http_requests_in_flight", "gauge", "Requests being answered.", self.in_flight)
        for metric in (in_flight, *more):
            name = metric.name if metric.is_full_name else f"{self._prefix}_{metric.name}"
            lines += [*_head(name, metric.kind, metric.help_text), f"{name} {metric.value}"]
        return "\n".join(lines) + "\n"

    def _request_lines(self) -> Iterable[str]:
        name = f"{self._prefix}_http_requests_total"
        yield from _head(name, "counter", "Requests by route and status.")
        for (method, route, status), count in self._requests.items():
            yield f'{name}{{method="{method}",route="{route}",status="{status}"}} {count}'

    def _duration_lines(self) -> Iterable[str]:
        name = f"{self._prefix}_http_request_duration_seconds"
        yield from _head(name, "histogram", "How long requests took, by route.")
        for (method, route), buckets in self._buckets.items():
            labels = f'method="{method}",route="{route}"'
            total = 0
            for limit, count in zip((*map(str, _BUCKETS_S), "+Inf"), buckets, strict=True):
                total += count
                yield f'{name}_bucket{{{labels},le="{limit}"}} {total}'
            yield f"{name}_sum{{{labels}}} {self._seconds[method, route]:.6f}"
            yield f"{name}_count{{{labels}}} {total}"


def _head(name: str, kind: str, text: str) -> tuple[str, str]:
    return f"# HELP {name} {text}", f"# TYPE {name} {kind}"
